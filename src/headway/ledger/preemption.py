"""What the response to each preemption notice saved, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.ledger.buckets import EFFECTIVE
from headway.ledger.merge import AttemptTimeline
from headway.ledger.model import NoticeResponse, PreemptionNotice
from headway.ledger.record import AttemptRecord
from headway.ledger.resume import DurableSave, Resume, lost_intervals
from headway.ledger.segments import clip, time_by_bucket


@dataclass(frozen=True, slots=True)
class _SavePoint:
    """A step of the run, and when the attempt completed it."""

    step: int
    at: int


def notices(
    attempts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    timelines: Sequence[AttemptTimeline],
    saves: Sequence[DurableSave],
    zero: int,
) -> tuple[PreemptionNotice, ...]:
    """Return a notice per preempted attempt; `saves` are in ns from the run's start, `zero`."""
    result = []
    for index, (attempt, resume, timeline) in enumerate(
        zip(attempts, resumes, timelines, strict=True)
    ):
        if attempt.outcome == "preempted":
            own_saves = [
                _SavePoint(s.step, s.captured_at + zero) for s in saves if s.attempt == index
            ]
            own_saves.sort(key=lambda mark: mark.at)
            result.append(_notice(index, attempt, resume, timeline, own_saves, zero))
    return tuple(result)


def _notice(
    index: int,
    attempt: AttemptRecord,
    resume: Resume,
    timeline: AttemptTimeline,
    saves: Sequence[_SavePoint],
    zero: int,
) -> PreemptionNotice:
    events = [event for rank in attempt.trainers() for event in rank.journal.named("preempted")]
    at = _received_at(attempt)
    before_notice = max(
        (s for s in saves if s.at < at),
        key=_instant,
        default=_SavePoint(resume.resumed_step, attempt.begin),
    )
    last = max((s for s in saves if s.at >= at), key=_instant, default=None)
    resumed = (
        None
        if resume.kept_step is None
        else _SavePoint(resume.kept_step, _last_kept_instant(attempt, resume))
    )
    resumable = resumed or last or before_notice
    response = _response(attempt, events, at, last is not None, resumable.step > before_notice.step)
    step = last.step if last else _step(events)
    reached = resumable.step if step is None else min(resumable.step, step)
    kept_steps = max(reached - before_notice.step, 0) if response == "saved" else 0
    return PreemptionNotice(
        attempt=index,
        at=at - zero,
        response=response,
        accelerators=_accelerators(attempt),
        step=step if response in ("saved", "late") else None,
        saved=_trained(timeline, before_notice.at, resumable.at) if kept_steps else 0,
        saved_steps=kept_steps,
        lost=None if resumed is None else _trained(timeline, resumed.at, attempt.end),
        lost_steps=None
        if resumed is None
        else _rolled_back(attempt, resume.resumed_step, resumed.step),
    )


def _instant(mark: _SavePoint) -> int:
    return mark.at


def _received_at(attempt: AttemptRecord) -> int:
    """Return when the launcher or the first rank recorded the notice, whichever is earlier."""
    times: list[int] = [
        event["t"] + rank.shift
        for rank in attempt.trainers()
        for event in rank.journal.named("preempted")
    ]
    times += [] if attempt.stop_requested_at is None else [attempt.stop_requested_at]
    return min(times)


def _response(
    attempt: AttemptRecord, events: Sequence[dict[str, Any]], at: int, safe: bool, further: bool
) -> NoticeResponse:
    """Classify the response of an attempt to its notice.

    `safe`: a save after the notice is durable. `further`: the run resumed, or can resume, from a
    later step than that of the last save before the notice.
    """
    save_began = any(event.get("saved") is True for event in events) or any(
        span.start + rank.shift >= at
        for rank in attempt.trainers()
        for span in rank.journal.spans
        if span.name == "checkpoint_save" and span.fields.get("level") != "memory"
    )
    if safe or (save_began and further):  # a writer may finish after its rank was killed
        return "saved"
    if save_began:
        return "late"
    return "skipped" if events else "none"


def _step(events: Sequence[dict[str, Any]]) -> int | None:
    return next((event["step"] for event in events if type(event.get("step")) is int), None)


def _last_kept_instant(attempt: AttemptRecord, resume: Resume) -> int:
    return min(
        (since for since, _ in lost_intervals(attempt.trainers(), resume)),
        default=attempt.end,
    )


def _trained(timeline: AttemptTimeline, start: int, end: int) -> int:
    return time_by_bucket(clip(timeline.segments, start, end)).get(EFFECTIVE, 0)


def _rolled_back(attempt: AttemptRecord, resumed_step: int, kept_step: int) -> int:
    steps = min((rank.steps for rank in attempt.trainers()), default=0)
    return min(max(resumed_step + steps - kept_step, 0), steps)


def _accelerators(attempt: AttemptRecord) -> int:
    worlds = [rank.journal.world for rank in attempt.ranks if rank.journal.world is not None]
    return max(worlds, default=len(attempt.ranks))
