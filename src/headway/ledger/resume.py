"""Lineage: where each attempt resumed, which steps were lost, and which saves are durable."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.journal.reader import Span
from headway.journal.saves import Event, Lineage, Stretch
from headway.ledger import segments as ledger_segments
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import Checkpoint, CheckpointOutcome
from headway.ledger.record import AttemptRecord, RankRecord
from headway.ledger.segments import Segment, union_sorted


@dataclass(frozen=True, slots=True)
class Resume:
    """How an attempt's own step count relates to the run's, and what of it was kept."""

    stretches: tuple[Stretch, ...]
    kept: tuple[int | None, ...]  # of each the last step of the run that counts; None: all

    @property
    def base(self) -> int:
        """The run's step that the attempt started from."""
        return self.stretches[0].base

    @property
    def keep(self) -> int | None:
        """The highest step of it that was not rolled back; None: all."""
        return self.kept[self.stretches.index(self._last)]

    @property
    def _last(self) -> Stretch:
        """A load that no step follows put nothing back: it was read for an evaluation, say."""
        trained = [stretch for stretch in self.stretches if stretch.made < stretch.end]
        return (trained or self.stretches)[-1 if trained else 0]

    def step(self, made: int, t: int) -> int:
        """The run's step of a rank which had made so many, at an instant of the run's axis."""
        begun = [stretch for stretch in self.stretches[1:] if stretch.at <= t]
        return [self.stretches[0], *begun][-1].step(made)

    def last_step(self, made: int) -> int:
        """The run's step of a rank which has made so many in all."""
        return self._last.step(made)


def resume_points(drafts: Sequence[AttemptRecord]) -> list[Resume]:
    """For each attempt the step it resumed from, and the highest of its steps that survived."""
    lineage = Lineage()
    lived: list[list[Stretch]] = []
    for index, draft in enumerate(drafts):
        made = max((life.steps for life in draft.lives), default=0)
        events = [event for life in draft.lives for event in _events(life)]
        declared = _declared_step(draft.lives)
        lived.append(lineage.add(index, events, steps=made, declared=declared))
    roots: list[Stretch] = []
    for draft, stretches in zip(reversed(drafts), reversed(lived), strict=True):
        trained = [stretch for stretch in stretches if stretch.made < stretch.end]
        if trained and (not roots or draft.outcome == "completed"):
            roots.append(trained[-1])
    kept = lineage.kept(roots)
    trains = bool(roots)
    return [
        Resume(
            tuple(stretches),
            tuple(kept.get(id(s), s.base) if trains else None for s in stretches),
        )
        for stretches in lived
    ]


def _events(life: RankRecord) -> list[Event]:
    """What it saved and loaded, in the order of time."""
    written = _background_writes(life)
    saves = [
        Event(span.start + life.shift, life.rank, _step(span), False, span.fields)
        for span in _finished_spans(life)
        if written.get(_key(span.fields), 0) is not None
    ]
    loads = [
        Event(at, life.rank, life.steps_at(at), True, span.fields)
        for span in life.journal.spans
        if span.name == "checkpoint_load" and not _in_background(life, span)
        for at in [span.start + life.shift]
    ]
    restored = [  # by a Checkpointer; before the first step it declares the step, too
        Event(at, life.rank, made, True, event, event["step"])
        for event in life.journal.named("restored")
        if type(event.get("step")) is int
        for at in [event["t"] + life.shift]
        if (made := life.steps_at(at))
    ]
    return [*saves, *loads, *restored]


def _in_background(life: RankRecord, load: Span) -> bool:
    """Whether the loop went on while another thread loaded: nothing was put back then.

    At the end of a load a line of steps is written, up to the last step before that.
    """
    if load.thread == life.thread or load.end is None:
        return False
    ends = life.journal.windows.end
    index = bisect_right(ends, load.start)
    return 0 < index < len(ends) and ends[index] <= load.end


def _declared_step(lives: Iterable[RankRecord]) -> int | None:
    """`headway.progress(step=...)` before the first step says where the loop starts."""
    steps = [
        event["step"]
        for life in lives
        for event in life.journal.named("progress")
        if event.get("step") is not None
        and (life.first_step_end is None or event["t"] + life.shift < life.first_step_end)
    ]
    return min(steps, default=None)


def _finished_spans(life: RankRecord) -> list[Span]:
    """Saves that were finished; a torn one holds nothing."""
    return [
        span
        for span in life.journal.spans
        if span.name == "checkpoint_save" and span.end is not None and not span.fields.get("error")
    ]


def _step(span: Span) -> int:
    step = span.fields.get("step")
    return step if type(step) is int else 0


def find_checkpoints(
    drafts: Sequence[AttemptRecord], resumes: Sequence[Resume]
) -> list[Checkpoint]:
    """All finished saves, as each rank saw them."""
    return [
        Checkpoint(
            attempt=index,
            rank=life.rank,
            start=span.start + life.shift,
            end=(span.end or span.start) + life.shift,
            step=resume.step(_step(span), span.start + life.shift),
            path=path if isinstance(path := span.fields.get("path"), str) else None,
            durable=written.get(_key(span.fields)),
            unwritten=written.get(_key(span.fields), 0) is None,
            told="level" in span.fields,
        )
        for index, (draft, resume) in enumerate(zip(drafts, resumes, strict=True))
        for life in draft.lives
        for written in [_background_writes(life)]
        for spans in [_finished_spans(life)]
        for told in [any("level" in span.fields for span in spans)]
        for span in spans
        if span.fields.get("background") is not True and _is_checkpoint(span, told)
    ]


def _is_checkpoint(span: Span, told: bool) -> bool:
    """Not a snapshot of a Checkpointer, nor what it pickles for a save."""
    level = span.fields.get("level")
    return level != "memory" and (level is not None or not told or "path" in span.fields)


_SaveKey = tuple[object, object]  # path and step


def _background_writes(life: RankRecord) -> dict[_SaveKey, int | None]:
    """When the background write of a save was done; None when it never was."""
    found: dict[_SaveKey, int | None] = {}
    for event in life.journal.named("saving"):
        found[_key(event)] = None
    for span in life.journal.spans:
        if span.name == "checkpoint_save" and span.fields.get("background") is True:
            failed = span.end is None or span.fields.get("error")
            found[_key(span.fields)] = None if failed else (span.end or 0) + life.shift
    return found


def _key(fields: Mapping[str, Any]) -> _SaveKey:
    path, step = fields.get("path"), fields.get("step")
    return path if isinstance(path, str) else None, step if type(step) is int else None


def lost_intervals(lives: Sequence[RankRecord], resume: Resume) -> list[tuple[int, int | None]]:
    """When the attempt trained in vain, as these ranks made it; None: to its end."""
    out: list[tuple[int, int | None]] = []
    after = [*resume.stretches[1:], None]
    for stretch, following, kept in zip(resume.stretches, after, resume.kept, strict=True):
        if kept is None:
            continue
        made = max(stretch.made + kept - stretch.base, stretch.made)
        if following is None and all(made >= life.steps for life in lives):
            continue
        if following is not None and made >= stretch.end:
            continue
        if made > stretch.made or stretch is resume.stretches[0]:
            since = max((life.work_end(made) or 0 for life in lives), default=0)
        else:
            since = stretch.at
        out.append((since, None if following is None else following.at))
    return out


def mark_lost(
    segments: Iterable[Segment], intervals: Sequence[tuple[int, int | None]]
) -> list[Segment]:
    """Effective seconds within `intervals` were trained in vain."""
    base = list(segments)
    if not intervals or not base:
        return base
    effective = [s for s in base if s.leaf == EFFECTIVE]
    over = [
        Segment(s.start, s.end, LOST)
        for since, until in intervals
        for s in ledger_segments.clip(effective, since, base[-1].end if until is None else until)
    ]
    return ledger_segments.paint(base, over)


def rolled_back_ranges(
    drafts: Sequence[AttemptRecord], resumes: Sequence[Resume]
) -> tuple[tuple[int, int], ...]:
    """First and last of the run's steps of each stretch that was trained in vain."""
    out = []
    for draft, resume in zip(drafts, resumes, strict=True):
        made = min((life.steps for life in draft.trainers()), default=0)
        for stretch, kept in zip(resume.stretches, resume.kept, strict=True):
            last = stretch.step(min(stretch.end, made))
            if kept is not None and last > max(kept, stretch.base):
                out.append((max(kept, stretch.base) + 1, last))
    return tuple(out)


def new_steps(drafts: Sequence[AttemptRecord], resumes: Sequence[Resume]) -> int:
    """Steps that every rank made and that the final state of the run descends from."""
    count = 0
    for draft, resume in zip(drafts, resumes, strict=True):
        made = min((life.steps for life in draft.trainers()), default=0)
        for stretch, kept in zip(resume.stretches, resume.kept, strict=True):
            steps = max(min(stretch.end, made) - stretch.made, 0)
            count += steps if kept is None else min(steps, max(kept - stretch.base, 0))
    return count


@dataclass(frozen=True, slots=True)
class Save:
    """One save, over all ranks that wrote a part of it; times in ns."""

    attempt: int
    step: int
    at: int
    blocked: int  # by all files of a rank together, on the rank where that was most
    written: int | None  # until it was durable, where a background write was seen
    path: str | None


def merge_files(checkpoints: Iterable[Checkpoint]) -> list[Save]:
    """In time order; files of the same step in one attempt are one save."""
    parts: dict[tuple[int, int], list[Checkpoint]] = {}
    for part in sorted(checkpoints, key=lambda part: (part.start, part.rank)):
        parts.setdefault((part.attempt, part.step), []).append(part)
    return [_merge_parts(key, found) for key, found in parts.items()]


def _merge_parts(key: tuple[int, int], parts: list[Checkpoint]) -> Save:
    files: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by rank
    for part in parts:
        files[part.rank].append((part.start, part.end))
    # One after the other or, of several threads, side by side.
    blocked = [
        sum(end - start for start, end in union_sorted(sorted(spans))) for spans in files.values()
    ]
    begin = parts[0].start
    written = None
    if any(part.durable is not None for part in parts) and not any(p.unwritten for p in parts):
        written = max(p.end if p.durable is None else p.durable for p in parts) - begin
    path = next((part.path for part in parts if part.path), None)
    return Save(*key, begin, max(blocked), written, path)


@dataclass(frozen=True, slots=True)
class DurableSave:
    """One such save, over all ranks; times in ns."""

    attempt: int
    step: int
    taken: int
    at: int  # the last rank had it on disk


def durable_saves(
    saved: Sequence[CheckpointOutcome], checkpoints: Sequence[Checkpoint]
) -> list[DurableSave]:
    """Files of one step together; a Checkpointer tells itself what became of its saves."""
    found = [
        DurableSave(one.attempt, one.step, one.at - one.durable, one.at)
        for one in saved
        if one.level == "disk" and not one.error
    ]
    files: dict[tuple[int, int], DurableSave] = {}
    for save in checkpoints:
        if save.told or save.unwritten:
            continue
        key, end = (save.attempt, save.step), save.end if save.durable is None else save.durable
        old = files.get(key, DurableSave(*key, save.start, end))
        files[key] = DurableSave(*key, min(old.taken, save.start), max(old.at, end))
    return [*found, *files.values()]
