"""Run a query on a store: retry after a concurrent compaction, and skip damaged files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headway.errors import HeadwayError, with_code
from headway.fleet.schema import SCHEMA, TABLES
from headway.fleet.store import arrow, manifest, spark
from headway.fleet.store.manifest import DataFile
from headway.fleet.store.parquet import LiveFiles, Store
from headway.fleet.store.view import open_view

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow
    from pyspark.sql import SparkSession


MANY_FILES = 5000  # each takes about a millisecond
TRIES = 4  # a compaction may delete files during a query

QueryFn = Callable[[Mapping[str, "ir.Table"]], "ir.Table"]


class QueryResult(NamedTuple):
    """The rows of a query, and notes for the user."""

    rows: pyarrow.Table
    notes: tuple[str, ...]


def run_query(
    store: Store,
    query_fn: QueryFn,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    session: SparkSession | None = None,
) -> QueryResult:
    """Evaluate an Ibis expression over the tables of a store, on DuckDB or a Spark session."""
    arrow.require_packages(*arrow.READ_PACKAGES)
    open_, failures = (
        (open_view, _duckdb_errors()) if session is None else spark.spark_view(session)
    )
    damaged: dict[str, str] = {}
    for retries in reversed(range(TRIES)):
        live_files = store.live_files()
        try:
            with open_(store, live_files, without=damaged) as view:
                rows = view.get(query_fn(view.tables(since, until)))
            break
        except failures as error:
            newly_damaged = find_damaged(store, live_files, skip=damaged) if retries else {}
            damaged.update(newly_damaged)
            if not (newly_damaged or (retries and _files_deleted(store, live_files))):
                reason = str(error).splitlines()[0]
                raise HeadwayError(
                    f"the store {store.url} cannot be read: {reason}", code="store-unreadable"
                ) from error
    reasons = (*damaged.values(), *damaged_markers(store, live_files))
    notes = [with_code(f"skipped: {reason}", code="file-damaged") for reason in reasons]
    if len(live_files.files) > MANY_FILES:
        text = (
            f"{len(live_files.files):,} files were read; "
            "run `headway fleet compact` to speed this up"
        )
        notes.append(with_code(text, code="many-files"))
    return QueryResult(rows, tuple(notes))


def _duckdb_errors() -> tuple[type[Exception], ...]:
    import duckdb

    return duckdb.Error, OSError


def damaged_markers(store: Store, live_files: LiveFiles) -> list[str]:
    """Notes on unreadable markers of compactions; their rows are known without them."""
    write_ids = sorted(live_files.manifest.damaged)
    return [
        f"{store.files.path(manifest.compaction_marker(write_id))} is damaged"
        for write_id in write_ids
    ]


def find_damaged(store: Store, live_files: LiveFiles, *, skip: Collection[str]) -> dict[str, str]:
    """Unreadable files with the reason for each; only searched after a failure."""
    import pyarrow.parquet as pq

    open_file = store.files.open
    reasons = {}
    for file in live_files.files:
        if file.name in skip:
            continue
        try:
            with open_file(file.name) as content:
                parquet = pq.ParquetFile(content)
                _check_columns(file, parquet.schema_arrow)
                for _ in parquet.iter_batches():
                    pass
        except FileNotFoundError:
            continue
        except Exception as error:  # errors of Arrow, OSError, errors of file systems
            reason = str(error).splitlines()[0][:100]
            reasons[file.name] = f"{store.files.path(file.name)} is damaged ({reason})"
    return reasons


def _check_columns(file: DataFile, schema: pyarrow.Schema) -> None:
    """Raise ValueError if a file of the current schema lacks columns of its table."""
    table = TABLES[file.table]
    types = {column.name: column.type for column in arrow.arrow_schema(table)}
    for name, kind in types.items() if file.schema == SCHEMA else ():
        if name not in schema.names or schema.field(name).type != kind:
            raise ValueError(f"its column {name} is not that of {file.table}")


def _files_deleted(store: Store, live_files: LiveFiles) -> bool:
    """Whether a finalized compaction has deleted some of the files."""
    return not {file.name for file in live_files.files} <= {
        file.name for file in store.data_files()
    }
