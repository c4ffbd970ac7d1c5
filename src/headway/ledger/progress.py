"""New data only: where each attempt resumed, and which steps were trained in vain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.journal.reader import Span
from headway.ledger import timeline
from headway.ledger.attempts import Draft
from headway.ledger.leaves import EFFECTIVE, LOST
from headway.ledger.life import Life
from headway.ledger.model import Checkpoint, Segment


@dataclass(frozen=True, slots=True)
class Resume:
    """How an attempt's own step count relates to the run's."""

    base: int  # the run's step that the attempt started from
    keep: int | None  # the highest step of it that no later attempt rolled back; None: all


def resume_points(drafts: Sequence[Draft]) -> list[Resume]:
    """For each attempt the step it resumed from, and the highest of its steps that survived."""
    saves: list[tuple[Span, int]] = []  # with the run's step that each one holds
    bases: list[int] = []
    for draft in drafts:
        base = min(_loaded_steps(draft.lives, saves), default=0)
        told = _told_step(draft.lives)
        bases.append(told if told is not None else base)
        for life in draft.lives:
            written = _written(life)
            for span in _saves(life):
                if written.get(_key(span.fields), 0) is not None:
                    saves.append((span, bases[-1] + _step(span)))
    keeps: list[int | None] = []
    floor: int | None = None
    for index in range(len(drafts) - 1, -1, -1):
        keeps.append(floor)
        if not any(life.steps for life in drafts[index].lives):
            continue  # it never trained, so it rolled nothing back
        floor = bases[index] if floor is None else min(floor, bases[index])
    return [Resume(b, k) for b, k in zip(bases, reversed(keeps), strict=True)]


def _loaded_steps(lives: Iterable[Life], saves: Sequence[tuple[Span, int]]) -> list[int]:
    """Per rank, the step in the last checkpoint it loaded before its first step."""
    found = []
    for life in lives:
        steps = None
        for span in life.journal.spans:
            starts = span.start + life.shift
            if span.name != "checkpoint_load":
                continue
            if life.first_step_end is not None and starts >= life.first_step_end:
                break
            match = _match(span, saves)
            steps = match if match is not None else steps
        if steps is not None:
            found.append(steps)
    return found


def _match(load: Span, saves: Sequence[tuple[Span, int]]) -> int | None:
    """The save that a load reads: by file identity, which survives a rename, else by path."""
    identity = load.fields.get("file")
    path = load.fields.get("path")
    for save, step in reversed(saves):
        if identity is not None and identity == save.fields.get("file"):
            return step
    for save, step in reversed(saves):
        if path is not None and path == save.fields.get("path"):
            return step
    return None


def _told_step(lives: Iterable[Life]) -> int | None:
    """`headway.progress(step=...)` before the first step says where the loop starts."""
    told = [
        event["step"]
        for life in lives
        for event in life.journal.named("progress")
        if event.get("step") is not None
        and (life.first_step_end is None or event["t"] + life.shift < life.first_step_end)
    ]
    return min(told, default=None)


def _saves(life: Life) -> list[Span]:
    """Saves that were finished; a torn one holds nothing."""
    return [
        span
        for span in life.journal.spans
        if span.name == "checkpoint_save" and span.end is not None and not span.fields.get("error")
    ]


def _step(span: Span) -> int:
    step = span.fields.get("step")
    return step if type(step) is int else 0


def checkpoints(drafts: Sequence[Draft], resumes: Sequence[Resume]) -> list[Checkpoint]:
    """All finished saves, as each rank saw them."""
    return [
        Checkpoint(
            attempt=index,
            rank=life.rank,
            start=span.start + life.shift,
            end=(span.end or span.start) + life.shift,
            step=resume.base + _step(span),
            path=path if isinstance(path := span.fields.get("path"), str) else None,
            durable=written.get(_key(span.fields)),
            unwritten=written.get(_key(span.fields), 0) is None,
            told="level" in span.fields,
        )
        for index, (draft, resume) in enumerate(zip(drafts, resumes, strict=True))
        for life in draft.lives
        for written in [_written(life)]
        for spans in [_saves(life)]
        for told in [any("level" in span.fields for span in spans)]
        for span in spans
        if span.fields.get("background") is not True and _is_checkpoint(span, told)
    ]


def _is_checkpoint(span: Span, told: bool) -> bool:
    """Not a snapshot of a Checkpointer, nor what it pickles for a save."""
    level = span.fields.get("level")
    return level != "memory" and (level is not None or not told or "path" in span.fields)


_Save = tuple[object, object]  # path and step


def _written(life: Life) -> dict[_Save, int | None]:
    """When the background write of a save was done; None when it never was."""
    found: dict[_Save, int | None] = {}
    for event in life.journal.named("saving"):
        found[_key(event)] = None
    for span in life.journal.spans:
        if span.name == "checkpoint_save" and span.fields.get("background") is True:
            failed = span.end is None or span.fields.get("error")
            found[_key(span.fields)] = None if failed else (span.end or 0) + life.shift
    return found


def _key(fields: Mapping[str, Any]) -> _Save:
    path, step = fields.get("path"), fields.get("step")
    return path if isinstance(path, str) else None, step if type(step) is int else None


def kept_until(lives: Sequence[Life], resume: Resume) -> int | None:
    """Until when the attempt's training counts; None when all of it does."""
    if resume.keep is None:
        return None
    steps = resume.keep - resume.base
    if all(steps >= life.steps for life in lives):
        return None
    return max((life.work_end(steps) or 0 for life in lives), default=0)


def move_lost(segments: Iterable[Segment], since: int | None) -> list[Segment]:
    """Effective seconds after `since` were trained in vain."""
    if since is None:
        return list(segments)
    out = []
    for segment in segments:
        if segment.leaf != EFFECTIVE or segment.end <= since:
            out.append(segment)
            continue
        out.append(Segment(segment.start, max(segment.start, since), EFFECTIVE))
        out.append(Segment(max(segment.start, since), segment.end, LOST))
    return timeline.join(out)


def new_steps(drafts: Sequence[Draft], resumes: Sequence[Resume]) -> int:
    """Steps that every rank made and that no later attempt rolled back."""
    count = 0
    for draft, resume in zip(drafts, resumes, strict=True):
        made = min((life.steps for life in draft.trainers()), default=0)
        if resume.keep is not None:
            made = min(made, max(resume.keep - resume.base, 0))
        count += made
    return count
