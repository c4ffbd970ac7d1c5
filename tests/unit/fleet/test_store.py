"""The store: all or nothing, the newest counts, and bad input is a sentence."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from headway.errors import HeadwayError, MissingExtra, NewerSchema, UsageError
from headway.fleet.schema import SCHEMA, TABLES, RowsInvalid
from headway.fleet.store import manifest
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from tests.support import codes, has_code
from tests.unit.fleet.store_rows import START, content, contents, files, merge_rows, run_rows, walls


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_what_is_written_is_read(store: Store) -> None:
    store.write(run_rows("a", hours=30, team="ads"))
    found = contents(
        store,
        runs="run_id wall_s",
        hours="run_id hour leaf",
        buckets="run_id hour leaf",
        failures="category",
    )
    assert found["runs"] == [("a", 108_000.0)] and found["failures"] == []
    assert (len(found["hours"]), len(found["buckets"])) == (60, 120)
    days = {file.day for file in store.data_files() if file.table == "hours"}
    assert days == {"2026-11-02", "2026-11-03"}


def test_bytes_of_no_encoding_are_replaced(store: Store) -> None:
    rows = run_rows("a")
    rows["runs"][0]["command"] = "train '/data/\udcff'"
    store.write(rows)
    assert contents(store, runs="command")["runs"] == [("train '/data/?'",)]


def test_twice_is_once(store: Store) -> None:
    for _ in range(2):
        store.write(run_rows("a"), as_of=100.0)
    found = contents(store, runs="run_id wall_s", hours="leaf")
    assert found["runs"] == [("a", 3600.0)] and len(found["hours"]) == 2


def test_the_one_that_knows_more_counts_whenever_it_came(store: Store) -> None:
    store.write(run_rows("a", hours=2), as_of=200.0)
    store.write(run_rows("a", hours=1, running=True), as_of=100.0)
    found = contents(store, runs="run_id wall_s", hours="leaf")
    assert found["runs"] == [("a", 7200.0)] and len(found["hours"]) == 4
    store.write(run_rows("a", hours=3), as_of=300.0)
    assert walls(store) == [("a", 10800.0)]


def test_attempts_are_replaced_one_by_one(store: Store) -> None:
    """A write of many runs: what is newer of one of them leaves the others as they are."""
    store.write(merge_rows(run_rows("a"), run_rows("b")), as_of=100.0)
    store.write(run_rows("a", hours=2), as_of=200.0)
    store.write(run_rows("b", attempt=1), as_of=200.0)
    assert contents(store, runs="run_id wall_s", hours="run_id attempt") == {
        "runs": [("a", 7200.0), ("b", 3600.0)],
        "hours": [("a", 0)] * 4 + [("b", 0)] * 2 + [("b", 1)] * 2,
    }


def test_a_write_without_its_commit_is_not_there(store: Store) -> None:
    store.write(run_rows("a"))
    version = store.write(run_rows("b"))
    store.files.delete(manifest.commit_marker(version))
    assert walls(store) == [("a", 3600.0)]


def test_a_write_that_fails_half_way_is_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(run_rows("a"))
    put = store.files.put

    def full(name: str, content: bytes) -> None:
        if name.startswith("buckets"):
            raise OSError(errno.ENOSPC, "No space left on device")
        put(name, content)

    monkeypatch.setattr(store.files, "put", full)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.ENOSPC):
        store.write(run_rows("b"))
    assert walls(store) == [("a", 3600.0)]


def test_a_writer_that_took_too_long_does_not_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.fleet.store.parquet.WRITE_S", -1.0)
    with pytest.raises(HeadwayError, check=has_code("store-too-slow")):
        store.write(run_rows("a"))
    assert walls(store) == []


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (
            {"hours": [{"run_id": "a", "attempt": 0, "leaf": "x"}]},
            "value-missing",
            {"table": "hours", "column": "hour"},
        ),
        (
            {"nodes": [{"run_id": "a", "color": 1}]},
            "column-unknown",
            {"table": "nodes", "column": "color"},
        ),
        ({"planes": []}, "table-unknown", {"table": "planes"}),
        (
            {"attempts": []},
            "rows-without-attempt",
            {"table": "hours", "run": "a", "attempt": 0},
        ),
        ({"runs": []}, "rows-without-run", {"run": "a"}),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    store: Store,
    change: dict[str, list[dict[str, object]]],
    code: str,
    fields: dict[str, object],
) -> None:
    with pytest.raises(RowsInvalid, check=has_code(code)) as error:
        store.write({**run_rows("a"), **change})
    assert error.value.fields == fields and not store.exists()


def test_a_write_needs_runs_and_attempts(store: Store) -> None:
    with pytest.raises(RowsInvalid, check=has_code("table-missing")):
        store.write({"runs": run_rows("a")["runs"]})


def test_a_table_of_arrow_can_be_given(store: Store) -> None:
    import pyarrow as pa

    rows = {name: pa.Table.from_pylist(given) for name, given in run_rows("a").items()}
    store.write(rows)
    assert content(store, "attempts", "run_id", "started_at") == [("a", START)]


def test_no_store_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("store-not-found")) as error:
        walls(Store(str(tmp_path / "none")))
    assert error.value.fields["store"] == str(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, check=has_code("not-a-store")):
        Store(str(tmp_path / "file"))


def test_a_folder_with_something_else_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, check=has_code("not-a-store")):
        Store(str(tmp_path)).write(run_rows("a"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_newer_schema_is_a_sentence(store: Store) -> None:
    store.write(run_rows("a"))
    path = Path(files(store, "hours")[0])
    path.rename(path.with_name(path.name.replace(f".s{SCHEMA}.", ".s9.")))
    with pytest.raises(NewerSchema) as error:
        walls(store)
    assert error.value.fields["schema"] == 9


@pytest.mark.parametrize("damage", ["cut", "empty", "inside"])
def test_a_damaged_file_is_named_and_left_out(store: Store, damage: str) -> None:
    store.write(run_rows("a"))
    good = len(files(store, "hours"))
    store.write(run_rows("b"))
    path = Path(next(p for p in sorted(files(store, "hours"))[good:]))
    data = path.read_bytes()
    cut = {"cut": data[: len(data) // 2], "empty": b"", "inside": _scratched(data)}
    path.write_bytes(cut[damage])
    answer = run_query(store, lambda tables: tables["hours"].select("run_id", "seconds"))
    assert answer.rows["run_id"].to_pylist() == ["a", "a"]
    (note,) = answer.notes
    assert codes(note) == ["file-damaged"] and str(path) in note


def _scratched(data: bytes) -> bytes:
    """The end, which tells what is where, is whole."""
    return data[:4] + bytes(byte ^ 0xFF for byte in data[4:200]) + data[200:]


def test_a_missing_package_is_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        store.write(run_rows("a"))


def test_a_store_may_lie_behind_a_url() -> None:
    store = Store("memory://fleet/one")
    store.write(run_rows("a"))
    store.write(run_rows("a", hours=2))
    assert walls(Store("memory://fleet/one")) == [("a", 7200.0)]
    with pytest.raises(UsageError, check=has_code("store-not-found")):
        walls(Store("memory://fleet/two"))


def test_every_table_names_the_day_of_its_rows() -> None:
    for table in TABLES.values():
        kinds = {column.name: column for column in table.columns}
        assert kinds[table.day].type == "timestamp" and kinds[table.day].required
        assert table.columns[-1].name == "version"
