"""Match loads with the saves they read, and derive from which step each part of training continued.

The launcher applies this to the journals that it follows, the ledger to those that it reads: one
matcher, so that they cannot differ. A stretch begins where an attempt begins, and where a load
after steps rolls training back to an earlier save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A finished save or a load of one rank; times of all ranks are on one axis.

    One with the field `error` has failed, and counts for nothing.
    """

    t: int  # when it began
    rank: int
    steps_done: int  # steps that its process had made
    is_load: bool
    fields: Mapping[str, Any]  # those of the journal: `path`, `file`
    step: int | None = None  # of the run, where the program tells what it has loaded


@dataclass(slots=True)
class Stretch:
    """Steps of one attempt that follow one another, each trained on the result of the last."""

    attempt: int
    at: int  # when it began; 0 for the first one of an attempt
    steps_done: int  # steps that each process had made by then
    end: int  # and when it was over
    base: int  # the step of the run that it went on from
    known: bool  # whether anything says so
    parent: Save | None  # what it went on from; None: from nothing

    def step(self, steps_done: int) -> int:
        """The step of the run that a process is at which has made so many."""
        return self.base + steps_done - self.steps_done


class Save(NamedTuple):
    """The state after a step of a stretch."""

    stretch: Stretch
    steps_done: int

    @property
    def step(self) -> int:
        """Of the run."""
        return self.stretch.step(self.steps_done)


@dataclass(slots=True)
class Saves:
    """What was saved up to now, by the identity of the file and by path; the last one counts."""

    _files: dict[str, Save] = field(default_factory=dict)
    _paths: dict[str, Save] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._files or self._paths)

    def add(self, fields: Mapping[str, Any], save: Save) -> None:
        """A save that came to its end."""
        for saves, key in ((self._files, "file"), (self._paths, "path")):
            name = fields.get(key)
            if isinstance(name, str) and name:
                saves.pop(name, None)
                saves[name] = save

    def match(self, load: Mapping[str, Any]) -> Save | None:
        """What a load has read: by the file's identity, which survives a rename, else by path."""
        file, path = load.get("file"), load.get("path")
        save = self._files.get(file) if isinstance(file, str) else None
        if save is None and isinstance(path, str):
            save = self._paths.get(path)
        return save


class Lineage:
    """The stretches of a run, attempt by attempt."""

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.saves = Saves()

    def add(
        self,
        attempt: int,
        events: Iterable[Event],
        *,
        steps: int,
        declared: int | None = None,
        known: bool = True,
    ) -> list[Stretch]:
        """The next attempt, which made so many steps: its stretches.

        `declared` is the step that the program says it starts from. `known` says whether an
        attempt of which nothing matches a save can be taken to have started from nothing.
        """
        complete = (event for event in events if not event.fields.get("error"))
        ordered = sorted(complete, key=lambda event: (event.t, event.is_load))
        start = [event for event in ordered if event.is_load and not event.steps_done]
        own = [self._start(Stretch(attempt, 0, 0, steps, 0, known, None), start, declared)]
        read: dict[int, Save] = {}  # by rank, since the last step
        for event in ordered:
            if not event.is_load:
                self.saves.add(event.fields, Save(own[-1], event.steps_done))
            elif event.steps_done and (save := self._loaded(event, own)) is not None:
                if len(own) == 1 or event.steps_done > own[-1].steps_done:
                    own[-1].end, read = event.steps_done, {}
                    own.append(Stretch(attempt, event.t, event.steps_done, steps, 0, True, None))
                if save.stretch is not own[-1]:
                    _keep_highest(read, event.rank, save)
                    _continue_from(own[-1], _slowest(read))
        self.stretches += own
        return own

    def _start(self, first: Stretch, loads: Iterable[Event], declared: int | None) -> Stretch:
        read: dict[int, Save] = {}
        for event in loads:
            if (save := self.saves.match(event.fields)) is not None:
                _keep_highest(read, event.rank, save)
        if read:
            _continue_from(first, _slowest(read))
        if declared is not None:
            if first.parent is None or first.parent.step != declared:
                first.parent = self._at(declared, self.stretches)
            first.base, first.known = declared, True
        return first

    def _loaded(self, event: Event, own: Sequence[Stretch]) -> Save | None:
        if event.step is None:
            return self.saves.match(event.fields)
        return self._at(event.step, [*self.stretches, *own])

    def _at(self, step: int, stretches: Sequence[Stretch]) -> Save | None:
        """The state after a step that the program has named, wherever it was saved."""
        if not step or not stretches:
            return None
        trained = [s for s in reversed(stretches) if s.base < step <= s.step(s.end)]
        last = max(reversed(stretches), key=lambda stretch: stretch.step(stretch.end))
        stretch = trained[0] if trained else last
        return Save(stretch, stretch.steps_done + step - stretch.base)

    def surviving_steps(self, roots: Iterable[Stretch]) -> dict[int, int | None]:
        """Of each stretch (by `id`) the last step that one of `roots` descends from; None: all.

        Of a root all is kept, unless another one before it has gone on from an earlier save.
        """
        surviving: dict[int, int | None] = {}
        for root in roots:
            if id(root) in surviving:
                continue
            surviving[id(root)] = None
            save = root.parent
            while save is not None:
                stretch, step = save.stretch, save.step
                if step > stretch.base or stretch.parent is None:
                    before = surviving.get(id(stretch), 0)
                    surviving[id(stretch)] = None if before is None else max(before, step)
                    save = stretch.parent
                else:  # a declared step of before that stretch
                    above = stretch.parent.stretch
                    steps_done = above.steps_done + step - above.base
                    save = Save(above, min(steps_done, stretch.parent.steps_done))
        return surviving


def _keep_highest(read: dict[int, Save], rank: int, save: Save) -> None:
    """Of several loads of a rank, the one of the highest step counts."""
    if rank not in read or save.step > read[rank].step:
        read[rank] = save


def _slowest(read: Mapping[int, Save]) -> Save:
    """Of several ranks, the one that is behind."""
    return min(read.values(), key=lambda save: save.step)


def _continue_from(stretch: Stretch, save: Save) -> None:
    stretch.base, stretch.parent = max(save.step, 0), save
    stretch.known = save.stretch.known
