"""Lineage: where each attempt resumed, which steps it lost, and which saves are durable."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.journal.reader import Span
from headway.journal.saves import Event, Lineage, Stretch
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import Checkpoint, CheckpointOutcome
from headway.ledger.record import AttemptRecord, RankRecord
from headway.ledger.segments import Segment, clip, paint, union_sorted


@dataclass(frozen=True, slots=True)
class Resume:
    """The relation of an attempt's step count to the run's, and which of its steps were kept."""

    stretches: tuple[Stretch, ...]
    kept_steps: tuple[int | None, ...]  # last kept step of the run, by stretch; None: all

    @property
    def resumed_step(self) -> int:
        """The run's step that the attempt started from."""
        return self.stretches[0].base

    @property
    def kept_step(self) -> int | None:
        """The highest step of the attempt that was not rolled back; None: all."""
        return self.kept_steps[self.stretches.index(self._last)]

    @property
    def _last(self) -> Stretch:
        """The last stretch with steps: a load without later steps, as for an evaluation, resumes
        nothing.
        """
        trained = [stretch for stretch in self.stretches if stretch.steps_done < stretch.end]
        return (trained or self.stretches)[-1 if trained else 0]

    def step(self, steps: int, t: int) -> int:
        """Return the run's step of a rank that had made `steps` steps at run time `t`."""
        started = [stretch for stretch in self.stretches[1:] if stretch.at <= t]
        return [self.stretches[0], *started][-1].step(steps)

    def last_step(self, steps: int) -> int:
        """Return the run's step of a rank that made `steps` steps in total."""
        return self._last.step(steps)


def resume_points(attempts: Sequence[AttemptRecord]) -> list[Resume]:
    """Return, for each attempt, the step it resumed from and its highest surviving step."""
    lineage = Lineage()
    stretches_of: list[list[Stretch]] = []
    for index, attempt in enumerate(attempts):
        steps = max((rank.steps for rank in attempt.ranks), default=0)
        events = [event for rank in attempt.ranks for event in _events(rank)]
        declared = _declared_step(attempt.ranks)
        stretches_of.append(lineage.add(index, events, steps=steps, declared=declared))
    roots: list[Stretch] = []
    for attempt, stretches in zip(reversed(attempts), reversed(stretches_of), strict=True):
        trained = [stretch for stretch in stretches if stretch.steps_done < stretch.end]
        if trained and (not roots or attempt.outcome == "completed"):
            roots.append(trained[-1])
    kept = lineage.surviving_steps(roots)
    trains = bool(roots)
    return [
        Resume(
            tuple(stretches),
            tuple(kept.get(id(s), s.base) if trains else None for s in stretches),
        )
        for stretches in stretches_of
    ]


def _events(rank: RankRecord) -> list[Event]:
    """Return the saves and loads of a rank."""
    written = _background_writes(rank)
    saves = [
        Event(span.start + rank.shift, rank.rank, _step(span), False, span.fields)
        for span in _finished_spans(rank)
        if written.get(_key(span.fields), 0) is not None
    ]
    loads = [
        Event(at, rank.rank, rank.steps_at(at), True, span.fields)
        for span in rank.journal.spans
        if span.name == "checkpoint_load" and not _in_background(rank, span)
        for at in [span.start + rank.shift]
    ]
    restored = [  # by a Checkpointer; before the first step, the event also declares the step
        Event(at, rank.rank, steps, True, event, event["step"])
        for event in rank.journal.named("restored")
        if type(event.get("step")) is int
        for at in [event["t"] + rank.shift]
        if (steps := rank.steps_at(at))
    ]
    return [*saves, *loads, *restored]


def _in_background(rank: RankRecord, load: Span) -> bool:
    """Whether the loop continued while another thread loaded, so that the load resumed nothing.

    The end of a load writes a line of steps, up to the last step before it.
    """
    if load.thread == rank.thread or load.end is None:
        return False
    ends = rank.journal.windows.end
    index = bisect_right(ends, load.start)
    return 0 < index < len(ends) and ends[index] <= load.end


def _declared_step(ranks: Iterable[RankRecord]) -> int | None:
    """Return the start of the loop: `headway.progress(step=...)` before the first step."""
    steps = [
        event["step"]
        for rank in ranks
        for event in rank.journal.named("progress")
        if event.get("step") is not None
        and (rank.first_step_end is None or event["t"] + rank.shift < rank.first_step_end)
    ]
    return min(steps, default=None)


def _finished_spans(rank: RankRecord) -> list[Span]:
    """Return the finished saves; a partial save is not usable."""
    return [
        span
        for span in rank.journal.spans
        if span.name == "checkpoint_save" and span.end is not None and not span.fields.get("error")
    ]


def _step(span: Span) -> int:
    step = span.fields.get("step")
    return step if type(step) is int else 0


def find_checkpoints(
    attempts: Sequence[AttemptRecord], resumes: Sequence[Resume]
) -> list[Checkpoint]:
    """Return all finished saves, as each rank recorded them."""
    return [
        Checkpoint(
            attempt=index,
            rank=rank.rank,
            start=span.start + rank.shift,
            end=(span.end or span.start) + rank.shift,
            step=resume.step(_step(span), span.start + rank.shift),
            path=path if isinstance(path := span.fields.get("path"), str) else None,
            durable=written.get(_key(span.fields)),
            not_durable=written.get(_key(span.fields), 0) is None,
            from_checkpointer="level" in span.fields,
        )
        for index, (attempt, resume) in enumerate(zip(attempts, resumes, strict=True))
        for rank in attempt.ranks
        for written in [_background_writes(rank)]
        for spans in [_finished_spans(rank)]
        for by_checkpointer in [any("level" in span.fields for span in spans)]
        for span in spans
        if span.fields.get("background") is not True and _is_checkpoint(span, by_checkpointer)
    ]


def _is_checkpoint(span: Span, by_checkpointer: bool) -> bool:
    """Exclude snapshots of a Checkpointer, and what it pickles for a save."""
    level = span.fields.get("level")
    return level != "memory" and (level is not None or not by_checkpointer or "path" in span.fields)


_SaveKey = tuple[object, object]  # path and step


def _background_writes(rank: RankRecord) -> dict[_SaveKey, int | None]:
    """Return the end of each background write; None if it did not finish or failed."""
    writes: dict[_SaveKey, int | None] = {}
    for event in rank.journal.named("saving"):
        writes[_key(event)] = None
    for span in rank.journal.spans:
        if span.name == "checkpoint_save" and span.fields.get("background") is True:
            failed = span.end is None or span.fields.get("error")
            writes[_key(span.fields)] = None if failed else (span.end or 0) + rank.shift
    return writes


def _key(fields: Mapping[str, Any]) -> _SaveKey:
    path, step = fields.get("path"), fields.get("step")
    return path if isinstance(path, str) else None, step if type(step) is int else None


def lost_intervals(ranks: Sequence[RankRecord], resume: Resume) -> list[tuple[int, int | None]]:
    """Return when these ranks trained steps that were rolled back; an end of None: to the end."""
    out: list[tuple[int, int | None]] = []
    after = [*resume.stretches[1:], None]
    for stretch, following, kept_step in zip(
        resume.stretches, after, resume.kept_steps, strict=True
    ):
        if kept_step is None:
            continue
        kept_count = max(stretch.steps_done + kept_step - stretch.base, stretch.steps_done)
        if following is None and all(kept_count >= rank.steps for rank in ranks):
            continue
        if following is not None and kept_count >= stretch.end:
            continue
        if kept_count > stretch.steps_done or stretch is resume.stretches[0]:
            since = max((rank.work_end(kept_count) or 0 for rank in ranks), default=0)
        else:
            since = stretch.at
        out.append((since, None if following is None else following.at))
    return out


def mark_lost(
    segments: Iterable[Segment], intervals: Sequence[tuple[int, int | None]]
) -> list[Segment]:
    """Move effective time within `intervals` to the bucket of lost training."""
    base = list(segments)
    if not intervals or not base:
        return base
    effective = [s for s in base if s.bucket == EFFECTIVE]
    over = [
        Segment(s.start, s.end, LOST)
        for since, until in intervals
        for s in clip(effective, since, base[-1].end if until is None else until)
    ]
    return paint(base, over)


def rolled_back_ranges(
    attempts: Sequence[AttemptRecord], resumes: Sequence[Resume]
) -> tuple[tuple[int, int], ...]:
    """Return the first and last step of the run of each range that was rolled back."""
    out = []
    for attempt, resume in zip(attempts, resumes, strict=True):
        steps = min((rank.steps for rank in attempt.trainers()), default=0)
        for stretch, kept_step in zip(resume.stretches, resume.kept_steps, strict=True):
            last = stretch.step(min(stretch.end, steps))
            if kept_step is not None and last > max(kept_step, stretch.base):
                out.append((max(kept_step, stretch.base) + 1, last))
    return tuple(out)


def new_steps(attempts: Sequence[AttemptRecord], resumes: Sequence[Resume]) -> int:
    """Count the steps that every rank made and that are part of the final state of the run."""
    count = 0
    for attempt, resume in zip(attempts, resumes, strict=True):
        completed = min((rank.steps for rank in attempt.trainers()), default=0)
        for stretch, kept_step in zip(resume.stretches, resume.kept_steps, strict=True):
            steps = max(min(stretch.end, completed) - stretch.steps_done, 0)
            count += steps if kept_step is None else min(steps, max(kept_step - stretch.base, 0))
    return count


@dataclass(frozen=True, slots=True)
class Save:
    """One save, over all ranks that wrote part of it; times in ns."""

    attempt: int
    step: int
    at: int
    blocked: int  # all files of a rank together, on the rank that was blocked longest
    written: int | None  # until it was durable; None without a background write
    path: str | None


def merge_files(checkpoints: Iterable[Checkpoint]) -> list[Save]:
    """Return the saves in time order; files of the same step in one attempt form a single save."""
    parts: dict[tuple[int, int], list[Checkpoint]] = {}
    for part in sorted(checkpoints, key=lambda part: (part.start, part.rank)):
        parts.setdefault((part.attempt, part.step), []).append(part)
    return [_merge_parts(key, files) for key, files in parts.items()]


def _merge_parts(key: tuple[int, int], parts: list[Checkpoint]) -> Save:
    files: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by rank
    for part in parts:
        files[part.rank].append((part.start, part.end))
    # The files of a rank are written sequentially or, by several threads, in parallel.
    blocked = [
        sum(end - start for start, end in union_sorted(sorted(spans))) for spans in files.values()
    ]
    begin = parts[0].start
    written = None
    if any(part.durable is not None for part in parts) and not any(p.not_durable for p in parts):
        written = max(p.end if p.durable is None else p.durable for p in parts) - begin
    path = next((part.path for part in parts if part.path), None)
    return Save(*key, begin, max(blocked), written, path)


@dataclass(frozen=True, slots=True)
class DurableSave:
    """A save that can be restored after a failure, over all ranks; times in ns."""

    attempt: int
    step: int
    captured_at: int
    at: int  # when it was on disk on all ranks


def durable_saves(
    saved: Sequence[CheckpointOutcome], checkpoints: Sequence[Checkpoint]
) -> list[DurableSave]:
    """Merge the files of each step; a Checkpointer records the outcome of its own saves."""
    saves = [
        DurableSave(outcome.attempt, outcome.step, outcome.at - outcome.durable, outcome.at)
        for outcome in saved
        if outcome.level == "disk" and not outcome.error
    ]
    files: dict[tuple[int, int], DurableSave] = {}
    for save in checkpoints:
        if save.from_checkpointer or save.not_durable:
            continue
        key, end = (save.attempt, save.step), save.end if save.durable is None else save.durable
        old = files.get(key, DurableSave(*key, save.start, end))
        files[key] = DurableSave(*key, min(old.captured_at, save.start), max(old.at, end))
    return [*saves, *files.values()]
