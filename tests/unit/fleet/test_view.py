"""Which rows count, whichever write is the largest: beside a plain reading of all files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headway.fleet.compact import compact
from headway.fleet.store import Store
from headway.fleet.view import view

from .made import content, files, rows_of, together

RUNS = [f"run{number}" for number in range(6)]


def plainly(store: Store, table: str) -> list[tuple[Any, ...]]:
    """Of each run or attempt the rows of its newest version, by hand."""
    live = store.read_log().live()
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
            rows_of(run, attempt=drawn.randrange(2), hours=1 + number + drawn.randrange(3))
            for run in written
        ]
        store.write(together(*made), as_of=float(drawn.randrange(4)))
        if number == 2:
            compact(store, grace_s=0)
    assert content(store, "runs", "run_id", "wall_s") == plainly(store, "runs")
    assert content(store, "hours", "run_id", "seconds") == plainly(store, "hours")


@pytest.mark.timeout(60)
def test_a_largest_write_of_which_nothing_is_the_newest(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(together(*(rows_of(run, hours=9) for run in RUNS)), as_of=1.0)
    for run in RUNS:
        store.write(rows_of(run), as_of=2.0)
    assert content(store, "runs", "run_id", "wall_s") == [(run, 3600.0) for run in RUNS]
    assert len(content(store, "hours", "run_id", "leaf")) == 2 * len(RUNS)


@pytest.mark.timeout(60)
def test_an_engine_that_takes_long_draws_no_bar_on_stdout(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(rows_of("a"))
    with view(store, store.snapshot()) as found:
        told = found._con.raw_sql("SELECT current_setting('enable_progress_bar')").fetchone()
    assert told == (False,)
