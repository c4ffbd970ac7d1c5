"""Compaction: the same answers from fewer files, whoever is killed and whoever is at work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.fleet import log
from headway.fleet.compact import Compacted, clear, compact
from headway.fleet.store import Store
from headway.fleet.view import view

from .made import content, files, rows_of, walls


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(str(tmp_path / "store"))
    for run in "abc":
        found.write(rows_of(run), as_of=100.0)
    found.write(rows_of("a", hours=2), as_of=200.0)
    return found


def test_the_answers_stay_and_the_files_go(store: Store) -> None:
    before = walls(store), content(store, "buckets", "run_id", "hour", "rank", "leaf", "seconds")
    assert compact(store) == Compacted(replaced=4, files=4, rows=30, deleted=0)
    assert len(store.files()) == 20  # readers that are at work may still need them
    assert before == (
        walls(store),
        content(store, "buckets", "run_id", "hour", "rank", "leaf", "seconds"),
    )
    assert compact(store, grace_s=0.0) == Compacted(0, 0, 0, deleted=16)
    assert len(store.files()) == 4
    assert before == (
        walls(store),
        content(store, "buckets", "run_id", "hour", "rank", "leaf", "seconds"),
    )
    assert store.read_log().writes == frozenset()


def test_what_comes_later_replaces_compacted_rows(store: Store) -> None:
    compact(store)
    store.write(rows_of("b", hours=3), as_of=300.0)
    store.write(rows_of("c", hours=9), as_of=50.0)
    assert walls(store) == [("a", 7200.0), ("b", 10800.0), ("c", 3600.0)]
    assert len(content(store, "hours", "run_id")) == 4 + 6 + 2
    compact(store, grace_s=0.0)
    compact(store, grace_s=0.0)
    assert walls(store) == [("a", 7200.0), ("b", 10800.0), ("c", 3600.0)]
    assert len(content(store, "hours", "run_id")) == 4 + 6 + 2


def test_a_large_compaction_is_not_written_again_for_little(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.fleet.compact.GROWTH", 0.01)
    compact(store)
    store.write(rows_of("y"))
    store.write(rows_of("z"))
    assert compact(store, grace_s=0.0).replaced == 2


def test_two_at_once_double_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins, and is done, while the first one is about to say what it replaces."""
    before = walls(store)
    put, nested = store.place.put, []

    def late(name: str, content: bytes) -> None:
        if name.startswith(log.COMPACTIONS) and not nested:
            nested.append(compact(Store(store.url)))
        put(name, content)

    monkeypatch.setattr(store.place, "put", late)
    compact(store)
    assert nested[0].replaced == 4 and len(store.read_log().compactions) == 2
    assert walls(store) == before
    for _ in range(3):
        compact(store, grace_s=0.0)
        assert walls(store) == before
    assert len(store.read_log().compactions) == 1


def test_a_killed_compaction_is_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = walls(store)
    put = store.place.put

    def killed(name: str, content: bytes) -> None:
        if name.startswith("runs"):
            raise KeyboardInterrupt
        put(name, content)

    monkeypatch.setattr(store.place, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        compact(store)
    monkeypatch.undo()
    assert walls(store) == before
    left = len(store.files())
    monkeypatch.setattr("headway.fleet.compact.DEAD_S", -60.0)  # a day later
    clear(store, 3600.0)
    assert len(store.files()) == 16 < left
    assert walls(store) == before


def test_a_reader_at_work_asks_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are deleted between the look and the read."""
    before, snapshot = walls(store), Store.snapshot
    looked = []

    def slow(self: Store) -> object:
        found = snapshot(self)
        if not looked:
            looked.append(found)
            monkeypatch.setattr(Store, "snapshot", snapshot)
            compact(store)
            compact(store, grace_s=0.0)
        return found

    monkeypatch.setattr(Store, "snapshot", slow)
    assert walls(store) == before


def test_a_damaged_write_is_left_as_it_is(store: Store) -> None:
    path = Path(sorted(files(store, "hours"))[1])
    data = path.read_bytes()
    path.write_bytes(data[:50])
    done = compact(store)
    assert done.replaced == 3 and len(done.notes) == 1 and str(path) in done.notes[0]
    path.write_bytes(data)  # from a copy, say
    assert len(content(store, "hours", "run_id")) == 4 + 2 + 2


def test_what_is_one_already_stays(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(rows_of("a"))
    assert compact(store).replaced == 0


def test_only_newest_rows_are_read(store: Store) -> None:
    """A write of which nothing is the newest is not opened at all."""
    old = next(file for file in store.snapshot().of("hours") if _is_old(store, file.stem))
    Path(store.place.path(old.name)).write_bytes(b"not opened")
    with view(store, store.snapshot()) as found:
        assert found.get(found.tables()["hours"]).num_rows == 8


def _is_old(store: Store, stem: str) -> bool:
    rows = content(store, "runs", "run_id", "version")
    return stem not in {version for _, version in rows}


def test_clocks_of_the_grace_are_those_of_the_files(store: Store) -> None:
    compact(store)
    assert clear(store, time.time()) == 0  # since 1970
    assert clear(store, -1.0) == 16
