"""Asking a store: again where it was compacted meanwhile, and without files that are damaged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headway.errors import HeadwayError
from headway.fleet import arrow, spark
from headway.fleet.store import Snapshot, Store
from headway.fleet.view import view

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow
    from pyspark.sql import SparkSession

MANY = 5000  # files; about a millisecond each
TRIES = 4  # a store may be compacted meanwhile

Question = Callable[[Mapping[str, "ir.Table"]], "ir.Table"]


class Answer(NamedTuple):
    """What was found, and what to know about it."""

    rows: pyarrow.Table
    notes: tuple[str, ...]


def ask(
    store: Store,
    question: Question,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    session: SparkSession | None = None,
) -> Answer:
    """The rows that an Ibis expression over the tables of a store gives, by DuckDB or a Spark."""
    arrow.need(*arrow.TO_READ)
    look, failures = (view, _of_duckdb()) if session is None else spark.on(session)
    damaged: dict[str, str] = {}
    for left in reversed(range(TRIES)):
        snapshot = store.snapshot()
        try:
            with look(store, snapshot, without=damaged) as found:
                rows = found.get(question(found.tables(since, until)))
            break
        except failures as error:
            new = find_damaged(store, snapshot, known=damaged) if left else {}
            damaged.update(new)
            if not (new or (left and _gone(store, snapshot))):
                why = str(error).splitlines()[0]
                raise HeadwayError(f"the store {store.url} cannot be read: {why}") from error
    notes = [f"left out: {why}" for why in damaged.values()]
    if len(snapshot.files) > MANY:
        told = f"{len(snapshot.files):,} files were read; `headway fleet compact` makes that faster"
        notes.append(told)
    return Answer(rows, tuple(notes))


def _of_duckdb() -> tuple[type[Exception], ...]:
    import duckdb

    return duckdb.Error, OSError


def find_damaged(store: Store, snapshot: Snapshot, *, known: Collection[str]) -> dict[str, str]:
    """Files that cannot be read, and why; looked for only when something has failed."""
    import pyarrow.parquet as pq

    opened = store.place.open
    found = {}
    for file in snapshot.files:
        if file.name in known:
            continue
        try:
            with opened(file.name) as content:
                for _ in pq.ParquetFile(content).iter_batches():
                    pass
        except FileNotFoundError:
            continue
        except Exception as error:  # Arrow's own, OSError, whatever a file system raises
            why = str(error).splitlines()[0][:100]
            found[file.name] = f"{store.place.path(file.name)} is damaged ({why})"
    return found


def _gone(store: Store, snapshot: Snapshot) -> bool:
    """Whether files were deleted since: a compaction has replaced them, and settled."""
    return not {file.name for file in snapshot.files} <= {file.name for file in store.files()}
