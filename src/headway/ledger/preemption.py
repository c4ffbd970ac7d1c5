"""What each preemption notice saved, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.ledger import segments
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.merge import AttemptTimeline
from headway.ledger.model import NoticeResponse, PreemptionNotice
from headway.ledger.record import AttemptRecord
from headway.ledger.resume import DurableSave, Resume, lost_intervals


@dataclass(frozen=True, slots=True)
class _SavePoint:
    """A step of the run, and when the attempt had made it."""

    step: int
    at: int


def notices(
    drafts: Sequence[AttemptRecord],
    resumes: Sequence[Resume],
    lived: Sequence[AttemptTimeline],
    saves: Sequence[DurableSave],
    zero: int,
) -> tuple[PreemptionNotice, ...]:
    """One for each attempt that was preempted; `saves` are in ns from the run's start, `zero`."""
    found = []
    for index, (draft, resume, life) in enumerate(zip(drafts, resumes, lived, strict=True)):
        if draft.outcome == "preempted":
            mine = [_SavePoint(s.step, s.taken + zero) for s in saves if s.attempt == index]
            mine.sort(key=lambda mark: mark.at)
            found.append(_notice(index, draft, resume, life, mine, zero))
    return tuple(found)


def _notice(
    index: int,
    draft: AttemptRecord,
    resume: Resume,
    life: AttemptTimeline,
    saves: Sequence[_SavePoint],
    zero: int,
) -> PreemptionNotice:
    told = [event for rank in draft.trainers() for event in rank.journal.named("preempted")]
    at = _received_at(draft)
    stood = max(
        (s for s in saves if s.at < at), key=_instant, default=_SavePoint(resume.base, draft.begin)
    )
    last = max((s for s in saves if s.at >= at), key=_instant, default=None)
    again = (
        None if resume.keep is None else _SavePoint(resume.keep, _last_kept_instant(draft, resume))
    )
    stands = again or last or stood
    answer = _response(draft, told, at, last is not None, stands.step > stood.step)
    step = last.step if last else _step(told)
    reached = stands.step if step is None else min(stands.step, step)
    kept = max(reached - stood.step, 0) if answer == "saved" else 0
    return PreemptionNotice(
        attempt=index,
        at=at - zero,
        answer=answer,
        accelerators=_accelerators(draft),
        step=step if answer in ("saved", "late") else None,
        saved=_trained(life, stood.at, stands.at) if kept else 0,
        saved_steps=kept,
        lost=None if again is None else _trained(life, again.at, draft.end),
        lost_steps=None if again is None else _rolled_back(draft, resume.base, again.step),
    )


def _instant(mark: _SavePoint) -> int:
    return mark.at


def _received_at(draft: AttemptRecord) -> int:
    """By the launcher, or by the first rank that heeds it, whichever tells of it first."""
    heard: list[int] = [
        event["t"] + rank.shift
        for rank in draft.trainers()
        for event in rank.journal.named("preempted")
    ]
    heard += [] if draft.told_to_stop is None else [draft.told_to_stop]
    return min(heard)


def _response(
    draft: AttemptRecord, told: Sequence[dict[str, Any]], at: int, safe: bool, further: bool
) -> NoticeResponse:
    """`safe`: a save after the notice is durable; `further`: one resumed, or can, beyond before."""
    began = any(event.get("saved") is True for event in told) or any(
        span.start + rank.shift >= at
        for rank in draft.trainers()
        for span in rank.journal.spans
        if span.name == "checkpoint_save" and span.fields.get("level") != "memory"
    )
    if safe or (began and further):  # a writer may have been done after its rank was ended
        return "saved"
    if began:
        return "late"
    return "skipped" if told else "none"


def _step(told: Sequence[dict[str, Any]]) -> int | None:
    return next((event["step"] for event in told if type(event.get("step")) is int), None)


def _last_kept_instant(draft: AttemptRecord, resume: Resume) -> int:
    return min(
        (since for since, _ in lost_intervals(draft.trainers(), resume)),
        default=draft.end,
    )


def _trained(life: AttemptTimeline, start: int, end: int) -> int:
    return segments.time_by_bucket(segments.clip(life.segments, start, end)).get(EFFECTIVE, 0)


def _rolled_back(draft: AttemptRecord, base: int, keep: int) -> int:
    made = min((rank.steps for rank in draft.trainers()), default=0)
    return min(max(base + made - keep, 0), made)


def _accelerators(draft: AttemptRecord) -> int:
    worlds = [rank.journal.world for rank in draft.lives if rank.journal.world is not None]
    return max(worlds, default=len(draft.lives))
