"""The commit protocol on a disk that crashes: what was acknowledged stays as it was saved."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store.cleanup import Policy, retain, sweep
from headway.checkpoint.store.commit import AbortMark, Draft, find_abort_mark, write_abort_mark
from headway.checkpoint.store.store import Checkpoint, Store
from headway.storage.place import open_place
from tests.support import examples
from tests.unit.checkpoint.store.small_saves import content, items, save
from tests.unit.storage.crashing_disk import Crash, Disk

STORE = "/store"
KILLED = st.one_of(st.just(-1), st.integers(0, 70))  # after so many calls; -1: not at all
POWER = st.none() | st.integers(0, 2**32)  # the machine crashes too, and loses what this decides
STEPS = st.integers(0, 4)


class Saves(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.disk = Disk()
        self.disk.install(self.patch)
        self.steps: dict[str, int] = {}  # of every save that was begun, in order
        self.worlds: dict[str, int] = {}
        self.due: list[str] = []  # acknowledged, and neither replaced nor deleted
        self.open: list[Draft] = []

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def begin(self) -> None:
        open_place(STORE).make_folder()

    def killed(self, power: int | None) -> None:
        self.open.clear()
        if power is None:
            self.disk.die()
        else:
            self.disk.lose_power(random.Random(power))

    @contextlib.contextmanager
    def until(self, calls: int, power: int | None) -> Iterator[None]:
        self.disk.left = calls
        try:
            yield
        except Crash:
            self.killed(power)
        self.disk.left = -1

    def listed(self) -> list[Checkpoint]:
        return Store(STORE).checkpoints()

    @rule(
        step=STEPS,
        world=st.integers(1, 2),
        delta=st.booleans(),
        calls=KILLED,
        power=POWER,
    )
    def save(self, step: int, world: int, delta: bool, calls: int, power: int | None) -> None:
        save_id = f"s{len(self.steps)}"
        there = self.listed()
        parent = there[0].manifest.save_id if delta and there and there[0].step != step else None
        self.steps[save_id], self.worlds[save_id] = step, world
        with self.until(calls, power):
            save(STORE, step, save_id, world=world, parent=parent, size=100)
            self.due = [one for one in self.due if self.steps[one] != step] + [save_id]

    @rule(step=STEPS)
    def begin_and_hold(self, step: int) -> None:
        save_id = f"s{len(self.steps)}"
        self.steps[save_id], self.worlds[save_id] = step, 1
        draft = Draft(STORE, step, save_id, 1).__enter__()
        write_part(draft.folder, 0, items(save_id, 0, 100))
        self.open.append(draft)

    @rule(step=STEPS, calls=KILLED, power=POWER)
    def give_up(self, step: int, calls: int, power: int | None) -> None:
        """The mark is there as a whole or not at all."""
        draft, given = Draft(STORE, step, f"g{step}", 2), AbortMark(0, "the disk is full")
        with self.until(calls, power):
            assert write_abort_mark(draft, given)
            assert find_abort_mark(draft) == given
        assert find_abort_mark(draft) in (None, given)

    @rule(calls=KILLED, power=POWER)
    def sweep(self, calls: int, power: int | None) -> None:
        with self.until(calls, power):
            sweep(STORE)
            names = open_place(STORE).list_names()
            over = (".trash", ".new", ".given-up")
            assert not [name for name in names if name.startswith(over)]
            drafts = {name for name in names if name.startswith(".draft")}
            assert drafts == {draft.name for draft in self.open}

    @rule(
        last=st.integers(1, 3),
        calls=KILLED,
        power=POWER,
    )
    def retain(self, last: int, calls: int, power: int | None) -> None:
        there = self.listed()
        parents = {one.manifest.save_id: one.manifest.parent for one in Store(STORE).scan()[0]}
        kept: set[str] = set()
        for one in there[:last]:
            at: str | None = one.manifest.save_id
            while at is not None:
                kept.add(at)
                at = parents[at]
        self.due = [one for one in self.due if one in kept]
        with self.until(calls, power):
            retain(STORE, Policy(last=last))
            assert {one.manifest.save_id for one in Store(STORE).scan()[0]} == kept

    @rule(power=POWER)
    def crash(self, power: int | None) -> None:
        self.killed(power)

    @invariant()
    def nothing_is_lost(self) -> None:
        store = Store(STORE)
        there = {one.manifest.save_id: one for one in store.checkpoints()}
        for one in there.values():
            assert store.verify(one, "full") == ""
            self.is_what_was_saved(one)
        # The save that replaces one may have come through without anybody being told.
        told = list(self.steps)
        for due in self.due:
            later = told[told.index(due) :]
            assert any(one in there and self.steps[one] == self.steps[due] for one in later)
        found = store.latest_valid("full")
        assert found.notes == ()
        assert (found.checkpoint is None) == (not there)
        if self.due:
            assert found.checkpoint is not None
            newest = found.checkpoint.manifest.save_id
            assert told.index(newest) >= told.index(self.due[-1])

    def is_what_was_saved(self, one: Checkpoint) -> None:
        save_id = one.manifest.save_id
        assert (one.step, one.manifest.world) == (self.steps[save_id], self.worlds[save_id])
        for rank in range(one.manifest.world):
            stored = open_place(STORE).read(f"{one.name}/__{rank}_0.distcp")
            file = one.manifest.files[1 + rank]
            item = file.items[1]
            assert stored[item.data : item.data + item.size] == content(save_id, rank, 100)


Saves.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=15, deadline=None
)
TestSaves = pytest.mark.timeout(110)(Saves.TestCase)
