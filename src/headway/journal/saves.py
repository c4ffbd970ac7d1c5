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
    """A finished save or a load of a rank; the times of all ranks are comparable.

    An event with the field `error` has failed, and is ignored.
    """

    t: int  # when it began
    rank: int
    steps_done: int  # steps that its process had made by then
    is_load: bool
    fields: Mapping[str, Any]  # those of the journal: `path`, `file`
    step: int | None = None  # of the run, if the program reports what it has loaded


@dataclass(slots=True)
class Stretch:
    """Consecutive steps of an attempt, without a rollback in between."""

    attempt: int
    at: int  # when it began; 0 for the first stretch of an attempt
    steps_done: int  # steps that each process had made by then
    end: int  # and at its end
    base: int  # the step of the run that it continued from
    known: bool  # whether that is recorded, not assumed
    parent: Save | None  # the save it continued from; None: from scratch

    def step(self, steps_done: int) -> int:
        """The step of the run after `steps_done` steps of a process."""
        return self.base + steps_done - self.steps_done


class Save(NamedTuple):
    """The state after a step of a stretch."""

    stretch: Stretch
    steps_done: int

    @property
    def step(self) -> int:
        """The step of the run."""
        return self.stretch.step(self.steps_done)


@dataclass(slots=True)
class Saves:
    """All saves so far, by file identity and by path; the last save counts."""

    _files: dict[str, Save] = field(default_factory=dict)
    _paths: dict[str, Save] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._files or self._paths)

    def add(self, fields: Mapping[str, Any], save: Save) -> None:
        """Add a finished save."""
        for saves, key in ((self._files, "file"), (self._paths, "path")):
            name = fields.get(key)
            if isinstance(name, str) and name:
                saves.pop(name, None)
                saves[name] = save

    def match(self, load: Mapping[str, Any]) -> Save | None:
        """The save that was loaded: by file identity, which survives a rename, or by path."""
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
        """Add the next attempt, which made `steps` steps; return its stretches.

        `declared`: the step that the program reports to start from. `known`: whether an attempt
        without a matching load is known to have started from scratch.
        """
        complete = (event for event in events if not event.fields.get("error"))
        ordered = sorted(complete, key=lambda event: (event.t, event.is_load))
        start = [event for event in ordered if event.is_load and not event.steps_done]
        stretches = [self._start(Stretch(attempt, 0, 0, steps, 0, known, None), start, declared)]
        read: dict[int, Save] = {}  # by rank, since the last step
        for event in ordered:
            if not event.is_load:
                self.saves.add(event.fields, Save(stretches[-1], event.steps_done))
            elif event.steps_done and (save := self._loaded(event, stretches)) is not None:
                if len(stretches) == 1 or event.steps_done > stretches[-1].steps_done:
                    stretches[-1].end, read = event.steps_done, {}
                    stretches.append(
                        Stretch(attempt, event.t, event.steps_done, steps, 0, True, None)
                    )
                if save.stretch is not stretches[-1]:
                    _keep_highest(read, event.rank, save)
                    _continue_from(stretches[-1], _slowest(read))
        self.stretches += stretches
        return stretches

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

    def _loaded(self, event: Event, current: Sequence[Stretch]) -> Save | None:
        if event.step is None:
            return self.saves.match(event.fields)
        return self._at(event.step, [*self.stretches, *current])

    def _at(self, step: int, stretches: Sequence[Stretch]) -> Save | None:
        """The state after a step that the program has reported, wherever it was saved."""
        if not step or not stretches:
            return None
        trained = [s for s in reversed(stretches) if s.base < step <= s.step(s.end)]
        last = max(reversed(stretches), key=lambda stretch: stretch.step(stretch.end))
        stretch = trained[0] if trained else last
        return Save(stretch, stretch.steps_done + step - stretch.base)

    def surviving_steps(self, roots: Iterable[Stretch]) -> dict[int, int | None]:
        """For each stretch (by `id`), the last step that one of `roots` descends from; None: all.

        All steps of a root survive, unless an earlier root continued from an earlier save.
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
                else:  # a declared step before that stretch
                    above = stretch.parent.stretch
                    steps_done = above.steps_done + step - above.base
                    save = Save(above, min(steps_done, stretch.parent.steps_done))
        return surviving


def _keep_highest(read: dict[int, Save], rank: int, save: Save) -> None:
    """Of several loads by a rank, the one with the highest step counts."""
    if rank not in read or save.step > read[rank].step:
        read[rank] = save


def _slowest(read: Mapping[int, Save]) -> Save:
    """The save with the lowest step of all ranks."""
    return min(read.values(), key=lambda save: save.step)


def _continue_from(stretch: Stretch, save: Save) -> None:
    stretch.base, stretch.parent = max(save.step, 0), save
    stretch.known = save.stretch.known
