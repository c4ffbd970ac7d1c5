"""Compaction, views and older schemas: the same answers, whatever the files are."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from headway.fleet.schema import SCHEMA, TABLES, Column
from headway.fleet.store import manifest, view
from headway.fleet.store.compaction import CompactionResult, collect_garbage, compact
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from headway.fleet.store.view import open_view
from tests.support import codes
from tests.unit.fleet.store_rows import content, contents, files, merge_rows, run_rows, walls


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(str(tmp_path / "store"))
    for run in "abc":
        found.write(run_rows(run), as_of=100.0)
    found.write(run_rows("a", hours=2), as_of=200.0)
    return found


def test_the_answers_stay_and_the_files_go(store: Store) -> None:
    columns = {"runs": "run_id wall_s", "buckets": "run_id hour rank leaf seconds"}
    before = contents(store, **columns)
    assert compact(store) == CompactionResult(replaced=4, files=4, rows=30, deleted=0)
    assert len(store.data_files()) == 20  # readers that are at work may still need them
    assert contents(store, **columns) == before
    assert compact(store, grace_s=0.0) == CompactionResult(0, 0, 0, deleted=16)
    assert len(store.data_files()) == 4
    assert contents(store, **columns) == before
    assert store.read_manifest().writes == frozenset()


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: b"",
    "other": lambda text: b'{"replaces": 5}',
    "letters": lambda text: b'{"replaces": "abc"}',
    "nested": lambda text: b"[" * 100_000,
    "flipped": lambda text: text.replace(b'["0', b'["1', 1),
}


@pytest.mark.parametrize(
    ("state", "damage"),
    [*(("settled", damage) for damage in DAMAGE), ("new", "cut"), ("cleared", "cut")],
)
def test_a_damaged_marker_of_a_compaction_changes_no_answer(
    store: Store, state: str, damage: str
) -> None:
    columns = {"runs": "run_id wall_s", "hours": "run_id hour leaf seconds"}
    before = contents(store, **columns)
    compact(store)
    if state == "cleared":
        collect_garbage(store, grace_s=0.0)
    elif state == "settled":
        (stem,) = store.read_manifest().compactions
        store.files.put(manifest.finalized_marker(stem), b"")  # as older versions wrote it
    (marker,) = Path(store.url).glob("compactions/*.json")
    marker.write_bytes(DAMAGE[damage](marker.read_bytes()))
    assert contents(store, **columns) == before
    if state != "cleared":  # it has a copy then
        answer = run_query(store, lambda tables: tables["runs"].select("run_id"))
        assert [codes(note) for note in answer.notes] == [["file-damaged"]]
        assert str(marker) in answer.notes[0]
    for _ in range(2):  # nothing is deleted by what a damaged marker may have said
        compact(store, grace_s=0.0)
    assert contents(store, **columns) == before


def test_a_compaction_without_a_check_is_read(store: Store) -> None:
    """As older versions wrote it."""
    before = walls(store)
    compact(store)
    (marker,) = Path(store.url).glob("compactions/*.json")
    told = json.loads(marker.read_text())
    assert told.pop("check")
    marker.write_text(json.dumps(told))
    assert walls(store) == before and not store.read_manifest().damaged


def test_what_comes_later_replaces_compacted_rows(store: Store) -> None:
    compact(store)
    store.write(run_rows("b", hours=3), as_of=300.0)
    store.write(run_rows("c", hours=9), as_of=50.0)
    expected = {"runs": [("a", 7200.0), ("b", 10800.0), ("c", 3600.0)]}
    expected["hours"] = [("a",)] * 4 + [("b",)] * 6 + [("c",)] * 2
    assert contents(store, runs="run_id wall_s", hours="run_id") == expected
    compact(store, grace_s=0.0)
    compact(store, grace_s=0.0)
    assert contents(store, runs="run_id wall_s", hours="run_id") == expected


def test_a_large_compaction_is_not_written_again_for_little(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.fleet.store.compaction.GROWTH", 0.01)
    compact(store)
    store.write(run_rows("y"))
    store.write(run_rows("z"))
    assert compact(store, grace_s=0.0).replaced == 2


def test_two_at_once_double_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins, and is done, while the first one is about to say what it replaces."""
    before = walls(store)
    put, nested = store.files.put, []

    def late(name: str, content: bytes) -> None:
        if name.startswith(manifest.COMPACTIONS) and not nested:
            nested.append(compact(Store(store.url)))
        put(name, content)

    monkeypatch.setattr(store.files, "put", late)
    compact(store)
    assert nested[0].replaced == 4 and len(store.read_manifest().compactions) == 2
    assert walls(store) == before
    for _ in range(3):
        compact(store, grace_s=0.0)
        assert walls(store) == before
    assert len(store.read_manifest().compactions) == 1


def test_a_killed_compaction_is_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = walls(store)
    put = store.files.put

    def killed(name: str, content: bytes) -> None:
        if name.startswith("runs"):
            raise KeyboardInterrupt
        put(name, content)

    monkeypatch.setattr(store.files, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        compact(store)
    monkeypatch.undo()
    assert walls(store) == before
    left = len(store.data_files())
    monkeypatch.setattr("headway.fleet.store.compaction.DEAD_S", -60.0)  # a day later
    collect_garbage(store, 3600.0)
    assert len(store.data_files()) == 16 < left
    assert walls(store) == before


def test_a_reader_at_work_asks_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are deleted between the look and the read."""
    before, snapshot = walls(store), Store.live_files
    looked = []

    def slow(self: Store) -> object:
        found = snapshot(self)
        if not looked:
            looked.append(found)
            monkeypatch.setattr(Store, "live_files", snapshot)
            compact(store)
            compact(store, grace_s=0.0)
        return found

    monkeypatch.setattr(Store, "live_files", slow)
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
    store.write(run_rows("a"))
    assert compact(store).replaced == 0


def test_only_newest_rows_are_read(store: Store) -> None:
    """A write of which nothing is the newest is not opened at all."""
    old = next(file for file in store.live_files().of("hours") if _is_old(store, file.write_id))
    Path(store.files.path(old.name)).write_bytes(b"not opened")
    with open_view(store, store.live_files()) as found:
        assert found.get(found.tables()["hours"]).num_rows == 8


def _is_old(store: Store, stem: str) -> bool:
    rows = content(store, "runs", "run_id", "version")
    return stem not in {version for _, version in rows}


def test_clocks_of_the_grace_are_those_of_the_files(store: Store) -> None:
    compact(store)
    assert collect_garbage(store, time.time()) == 0  # since 1970
    assert collect_garbage(store, -1.0) == 16


# -- which rows count, beside a plain reading of all files -------------------------------------

RUNS = [f"run{number}" for number in range(6)]


def plainly(store: Store, table: str) -> list[tuple[Any, ...]]:
    """Of each run or attempt the rows of its newest version, by hand."""
    import pyarrow.parquet as pq

    live = store.read_manifest().live_ids()
    kept: dict[tuple[Any, ...], tuple[str, list[tuple[Any, ...]]]] = {}
    for path in files(store, table):
        if Path(path).name.partition(".")[0] not in live:
            continue
        for row in pq.ParquetFile(path).read().to_pylist():
            key = (row["run_id"], row.get("attempt"))
            version, rows = kept.get(key, ("", []))
            told = (row["run_id"], row.get("wall_s") or row["seconds"])
            if row["version"] > version:
                kept[key] = (row["version"], [told])
            elif row["version"] == version:
                rows.append(told)
    return sorted(row for _, rows in kept.values() for row in rows)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.timeout(60)
def test_the_newest_rows_count_whichever_write_is_the_largest(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    store = Store(str(tmp_path / "store"))
    for number in range(5):
        written = drawn.sample(RUNS, drawn.choice([1, 2, 6]))
        made = [
            run_rows(run, attempt=drawn.randrange(2), hours=1 + number + drawn.randrange(3))
            for run in written
        ]
        store.write(merge_rows(*made), as_of=float(drawn.randrange(4)))
        if number == 2:
            compact(store, grace_s=0)
    assert contents(store, runs="run_id wall_s", hours="run_id seconds") == {
        name: plainly(store, name) for name in ("runs", "hours")
    }


@pytest.mark.timeout(60)
def test_a_largest_write_of_which_nothing_is_the_newest(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(merge_rows(*(run_rows(run, hours=9) for run in RUNS)), as_of=1.0)
    for run in RUNS:
        store.write(run_rows(run), as_of=2.0)
    found = contents(store, runs="run_id wall_s", hours="run_id leaf")
    assert found["runs"] == [(run, 3600.0) for run in RUNS]
    assert len(found["hours"]) == 2 * len(RUNS)


@pytest.mark.timeout(60)
def test_an_engine_that_takes_long_draws_no_bar_on_stdout(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(run_rows("a"))
    with open_view(store, store.live_files()) as found:
        told = found._con.raw_sql("SELECT current_setting('enable_progress_bar')").fetchone()
    assert told == (False,)


# -- old files stay readable: `stores/v1` was written by the first version of the schema ---------

V1 = Path(__file__).parents[2] / "golden" / "fleet_store" / "first" / "files" / "store"


@pytest.fixture
def old(tmp_path: Path) -> Store:
    return Store(str(shutil.copytree(V1, tmp_path / "store")))


def test_the_first_version_is_read(old: Store) -> None:
    assert contents(old, runs="run_id team user wall_s", failures="category lost_s") == {
        "runs": [("a", "ads", "ann", 3600.0)],
        "failures": [("network", 60.0)],
    }
    assert {file.schema for file in old.data_files()} == {1}


TOMORROW = SCHEMA + 1


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next schema: `user` is called `person`, `planet` is new, `python` is gone."""
    runs = TABLES["runs"]
    columns = [column for column in runs.columns if column.name not in ("user", "python")]
    new = [Column("person", "string", "who"), Column("planet", "string", "where")]
    monkeypatch.setitem(TABLES, "runs", runs._replace(columns=(*new, *columns)))
    steps = {SCHEMA: {"runs": lambda rows: rows.rename(person="user")}}
    monkeypatch.setattr(view, "STEPS", steps)
    for module in ("store.view", "store.parquet", "store.compaction", "store.arrow"):
        monkeypatch.setattr(f"headway.fleet.{module}.SCHEMA", TOMORROW)


@pytest.mark.usefixtures("tomorrow")
def test_old_and_new_files_are_one_table(old: Store) -> None:
    old.write(run_rows("b", person="bob", planet="mars"))
    seen = [("a", "ann", None), ("b", "bob", "mars")]
    assert sorted(_people(old)) == seen
    assert {file.schema for file in old.data_files()} == {1, TOMORROW}
    compact(old)
    compact(old, grace_s=0.0)
    assert {file.schema for file in old.data_files()} == {TOMORROW}
    assert sorted(_people(old)) == seen


def _people(store: Store) -> list[tuple[object, ...]]:
    from headway.fleet.store.reader import run_query

    rows = run_query(store, lambda tables: tables["runs"]).rows
    assert "python" not in rows.column_names and "user" not in rows.column_names
    return [(row["run_id"], row["person"], row["planet"]) for row in rows.to_pylist()]
