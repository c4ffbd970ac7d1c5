"""The log of a store: which files count, in any order of events and with a kill at any instant."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.fleet.store import manifest
from headway.fleet.store.compaction import _select_inputs, collect_garbage
from headway.fleet.store.manifest import Manifest
from headway.fleet.store.parquet import Store
from headway.storage.fleet_files import FileEntry
from tests.support import examples


def of(writes: str, settled: str = "", **compactions: str) -> Manifest:
    """Stems are single letters; a compaction is named by a longer word."""
    replaced = {write_id: frozenset(names.split()) for write_id, names in compactions.items()}
    return Manifest(frozenset(writes.split()), replaced, frozenset(settled.split()))


def test_writes_count() -> None:
    assert of("a b").live_ids() == {"a", "b"}


def test_a_compaction_takes_the_place_of_what_it_replaces() -> None:
    assert of("a b c", c1="a b").live_ids() == {"c", "c1"}


def test_of_two_that_replace_the_same_the_first_begun_counts() -> None:
    assert of("a b c", c2="b c", c1="a b").live_ids() == {"c1", "c"}


def test_a_settled_one_counts_whatever_comes() -> None:
    assert of("a b c", "c2", c2="b c", c1="a b").live_ids() == {"c2", "a"}
    assert of("a", "c2", c2="b c", c1="a b").live_ids() == {"c2", "a"}


def test_one_that_lost_never_counts_again() -> None:
    """The winner was replaced by a larger one: nothing overlaps with the loser any more."""
    manifest_ = of("a", "c3", c3="c2 d", c1="a b")
    assert manifest_.live_ids() == {"c3", "a"}
    assert manifest_.is_inconsistent()


def test_a_compaction_may_replace_an_earlier_one() -> None:
    assert of("d", "c1", c1="a b", c2="c1 d").live_ids() == {"c2"}


def test_names_say_what_a_file_is() -> None:
    write_id = manifest.new_write_id(1_800_000_000.0)
    name = manifest.file_name("hours", "2026-11-16", write_id, 1)
    assert manifest.parse_file_name(name, 7) == manifest.DataFile(
        name, "hours", "2026-11-16", write_id, 1, 7
    )
    assert manifest.parse_file_name(f"hours/day=2026-11-16/.{write_id}", 7) is None
    assert manifest.parse_file_name("hours/notes.txt", 7) is None


def test_who_knows_more_of_a_run_is_newer() -> None:
    assert manifest.new_write_id(200.0) > manifest.new_write_id(100.0)
    assert manifest.marker_ids(
        ["commits/.x.json", "commits/a.json", "commits/b.settled"], ".json"
    ) == {"a"}


# -- compactions, without rows ---------------------------------------------------------------


class Killed(BaseException):
    """As by kill -9: nothing is caught, nothing is cleared up."""


class MemoryFiles:
    """A place in memory whose user is killed after so many changes."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {manifest.STORE_MARKER: b"{}"}
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

    def entries(self, below: str) -> Iterator[FileEntry]:
        for name in list(self.objects):
            if name.startswith(f"{below}/"):
                yield FileEntry(name, 1, time.time())


class Fleet:
    """Writers and compactors on one store. The content of a write is the set of its runs."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.store = Store.__new__(Store)
        self.store.url, self.store.files = "memory", self.files  # type: ignore[assignment]
        self.content: dict[str, list[int]] = {}
        self.committed: list[int] = []
        self.started: list[tuple[str, frozenset[str]]] = []
        self.count = 0

    def write(self) -> None:
        """Files, then the commit; it may be killed between them."""
        self.count += 1
        write_id = f"{self.count:05d}"
        self.content[write_id] = [self.count]
        self.files.put(manifest.file_name("runs", "2026-11-16", write_id, 1), b"")
        self.files.put(manifest.commit_marker(write_id), b"")
        self.committed.append(self.count)

    def begin(self) -> None:
        """A compaction looks, and writes its files."""
        live_files = self.store.live_files()
        inputs = frozenset(_select_inputs(live_files, ()))
        if len(inputs) < 2:
            return
        self.count += 1
        write_id = f"c{self.count:05d}"
        self.content[write_id] = [run for write_id in inputs for run in self.content[write_id]]
        self.files.put(manifest.file_name("runs", "2026-11-16", write_id, 1), b"")
        self.started.append((write_id, inputs))

    def finish(self, which: int) -> None:
        """One that was begun, maybe long ago, says that it is complete."""
        if self.started:
            write_id, inputs = self.started.pop(which % len(self.started))
            content = {"replaces": sorted(inputs)}
            self.files.put(manifest.compaction_marker(write_id), json.dumps(content).encode())

    def check(self) -> None:
        """Each committed run is found once, in files that are there."""
        live = self.store.read_manifest().live_ids()
        assert sorted(run for write_id in live for run in self.content[write_id]) == self.committed
        stored = {file.write_id for file in self.store.data_files()}
        assert live <= stored


steps = st.tuples(
    st.sampled_from(["write", "write", "write", "begin", "finish", "clear", "wait"]),
    st.integers(0, 12),
    st.booleans(),
)


# One is late: whoever won against it has been replaced in turn, and deleted.
LATE = "write write begin begin finish clear write begin finish clear finish write clear"


@pytest.mark.timeout(120)
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(steps, max_size=40))
@example([(word, int(at < 10), False) for at, word in enumerate(LATE.split())])
def test_nothing_is_lost_and_nothing_is_doubled(plan: list[tuple[str, int, bool]]) -> None:
    fleet = Fleet()
    for what, number, killed in plan:
        fleet.files.changes = number if killed else 10**9
        try:
            if what == "write":
                fleet.write()
            elif what == "begin":
                fleet.begin()
            elif what == "finish":
                fleet.finish(number)
            else:  # with the grace that a person gave, or as one who waited for it
                collect_garbage(fleet.store, -1.0 if what == "clear" else 1e12)
        except Killed:
            pass
        fleet.files.changes = 10**9
        fleet.check()
