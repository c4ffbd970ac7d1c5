"""The protocol of compaction, without rows: any order of events, and a kill at any instant."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.fleet import log
from headway.fleet.compact import _choose, clear
from headway.fleet.place import Entry
from headway.fleet.store import Store


class Killed(BaseException):
    """As by kill -9: nothing is caught, nothing is cleared up."""


class Shelf:
    """A place in memory whose user is killed after so many changes."""

    url = "shelf"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {log.STORE: b"{}"}
        self.changes = 10**9

    def _change(self) -> None:
        if not self.changes:
            raise Killed
        self.changes -= 1

    def put(self, name: str, content: bytes) -> None:
        self._change()
        self.objects[name] = content

    def get(self, name: str) -> bytes:
        return self.objects[name]

    def delete(self, name: str) -> None:
        self._change()
        self.objects.pop(name, None)

    def entries(self, below: str) -> Iterator[Entry]:
        for name in list(self.objects):
            if name.startswith(f"{below}/"):
                yield Entry(name, 1, time.time())


class Fleet:
    """Writers and compactors on one shelf. The content of a stem is the set of its runs."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.store = Store.__new__(Store)
        self.store.url, self.store.place = "shelf", self.shelf  # type: ignore[assignment]
        self.content: dict[str, list[int]] = {}
        self.committed: list[int] = []
        self.begun: list[tuple[str, frozenset[str]]] = []
        self.made = 0

    def write(self) -> None:
        """Files, then the commit; it may be killed between them."""
        self.made += 1
        stem = f"{self.made:05d}"
        self.content[stem] = [self.made]
        self.shelf.put(log.file_name("runs", "2026-11-16", stem, 1), b"")
        self.shelf.put(log.commit(stem), b"")
        self.committed.append(self.made)

    def begin(self) -> None:
        """A compaction looks, and writes its files."""
        snapshot = self.store.snapshot()
        chosen = frozenset(_choose(snapshot, ()))
        if len(chosen) < 2:
            return
        self.made += 1
        stem = f"c{self.made:05d}"
        self.content[stem] = [run for one in chosen for run in self.content[one]]
        self.shelf.put(log.file_name("runs", "2026-11-16", stem, 1), b"")
        self.begun.append((stem, chosen))

    def finish(self, which: int) -> None:
        """One that was begun, maybe long ago, says that it is complete."""
        if self.begun:
            stem, chosen = self.begun.pop(which % len(self.begun))
            told = {"replaces": sorted(chosen)}
            self.shelf.put(log.compaction(stem), json.dumps(told).encode())

    def check(self) -> None:
        """Each committed run is found once, in files that are there."""
        live = self.store.read_log().live()
        assert sorted(run for stem in live for run in self.content[stem]) == self.committed
        there = {file.stem for file in self.store.files()}
        assert live <= there


steps = st.tuples(
    st.sampled_from(["write", "write", "write", "begin", "finish", "clear", "wait"]),
    st.integers(0, 12),
    st.booleans(),
)


# One is late: whoever won against it has been replaced in turn, and deleted.
LATE = "write write begin begin finish clear write begin finish clear finish write clear"


@pytest.mark.timeout(120)
@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=40))
@example([(word, int(at < 10), False) for at, word in enumerate(LATE.split())])
def test_nothing_is_lost_and_nothing_is_doubled(plan: list[tuple[str, int, bool]]) -> None:
    fleet = Fleet()
    for what, number, killed in plan:
        fleet.shelf.changes = number if killed else 10**9
        try:
            if what == "write":
                fleet.write()
            elif what == "begin":
                fleet.begin()
            elif what == "finish":
                fleet.finish(number)
            else:  # with the grace that a person gave, or as one who waited for it
                clear(fleet.store, -1.0 if what == "clear" else 1e12)
        except Killed:
            pass
        fleet.shelf.changes = 10**9
        fleet.check()
