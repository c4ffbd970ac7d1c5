"""Rows of synthetic runs for tests of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from headway.fleet.store.view import open_view
from headway.ledger.buckets import EFFECTIVE

START = datetime(2026, 11, 2, 5)  # a Monday
Row = dict[str, Any]


def run_rows(
    run: str,
    *,
    attempt: int = 0,
    start: datetime = START,
    hours: int = 1,
    accelerators: int = 2,
    leaves: dict[str, float] | None = None,
    running: bool = False,
    **fields: Any,
) -> dict[str, list[Row]]:
    """A run of one attempt: in each of its hours the same seconds in each leaf."""
    leaves = leaves or {EFFECTIVE: 3000.0, "start.pt2_compile": 600.0}
    wall, trained = hours * sum(leaves.values()), hours * leaves.get(EFFECTIVE, 0.0)
    key = {"run_id": run, "attempt": attempt}
    lived = {"started_at": start, "ended_at": start + timedelta(seconds=wall)}
    size = {"accelerators": accelerators, "wall_s": wall, "effective_s": trained}
    told = {"run": run, "running": running, "attempts": attempt + 1, "failures": 0}
    falls = [
        {"hour": start + timedelta(hours=hour), "leaf": leaf, "seconds": seconds}
        for hour in range(hours)
        for leaf, seconds in leaves.items()
    ]
    outcome = "running" if running else "completed"
    return {
        "runs": [{"run_id": run, **told, **lived, **size, **fields}],
        "attempts": [{**key, **lived, **size, "outcome": outcome, "lost_s": 0.0}],
        "hours": [{**key, **row, "accelerator_s": row["seconds"] * accelerators} for row in falls],
        "buckets": [{**key, **row, "rank": rank} for rank in range(accelerators) for row in falls],
    }


def merge_rows(*tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Several runs as one write."""
    names = dict.fromkeys(name for one in tables for name in one)
    return {name: [row for one in tables for row in one.get(name, ())] for name in names}


def content(store: Store, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """All rows of a table that count, in order."""
    rows = run_query(store, lambda tables: tables[table].select(*columns)).rows
    return sorted(zip(*(rows[name].to_pylist() for name in columns), strict=True))


def contents(store: Store, **columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """Of several tables at once, each with its columns: the store is opened only once."""
    with open_view(store, store.live_files()) as found:
        tables = found.tables()
        rows = {name: found.get(tables[name].select(*of.split())) for name, of in columns.items()}
    return {
        name: sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
        for name, table in rows.items()
    }


def walls(store: Store) -> list[tuple[Any, ...]]:
    """The runs, and how long they ran."""
    return content(store, "runs", "run_id", "wall_s")


def files(store: Store, table: str) -> Sequence[str]:
    """The paths of all files of a table."""
    return [store.files.path(file.name) for file in store.data_files() if file.table == table]
