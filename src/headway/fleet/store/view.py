"""Tables of a store as Ibis expressions: the newest rows of each attempt, in the current schema.

Files of older schemas are migrated while they are read; compaction rewrites them.
"""

from __future__ import annotations

import contextlib
import glob
import secrets
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.fleet.schema import SCHEMA, TABLES, Table
from headway.fleet.store import arrow
from headway.fleet.store.manifest import DataFile
from headway.fleet.store.parquet import LiveFiles, Store

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow


if TYPE_CHECKING:
    import ibis.expr.types as ir

    Step = Callable[[ir.Table], ir.Table]

# Steps from a schema version to the next one, by table, for columns that were renamed or are
# computed differently. New and removed columns need no step: a new one is null in old files.
STEPS: Mapping[int, Mapping[str, Step]] = {}


def migrate(table: Table, rows: ir.Table, schema: int) -> ir.Table:
    """Migrate rows of an older schema to the current columns."""
    import ibis

    for old in range(schema, SCHEMA):
        step = STEPS.get(old, {}).get(table.name)
        rows = step(rows) if step else rows
    columns = {
        column.name: (
            rows[column.name].cast(column.type)
            if column.name in rows.columns
            else ibis.null(column.type)
        )
        for column in table.columns
    }
    return rows.select(**columns)


# Every row of these tables has its own time, so files of other days can be skipped.
PRUNED_TABLES = ("hours", "buckets", "failures", "checkpoints", "compiles")


class Tables(dict[str, "ir.Table"]):
    """Tables by name, created on first access."""

    def __init__(self, make: Callable[[str], ir.Table]) -> None:
        self._make = make

    def __missing__(self, name: str) -> ir.Table:
        self[name] = self._make(name)
        return self[name]


@contextlib.contextmanager
def open_view(
    store: Store, live_files: LiveFiles, *, without: Collection[str] = ()
) -> Iterator[View]:
    """Open a view on an in-process DuckDB; remote files are downloaded when a query needs them."""
    import ibis

    con = ibis.duckdb.connect(preserve_insertion_order=False)
    try:
        # DuckDB would print it to stdout after two seconds, into the middle of JSON or CSV.
        con.raw_sql("SET enable_progress_bar = false")
        with tempfile.TemporaryDirectory(prefix="headway-store-") as folder:
            fetch = store.files.fetch
            yield View(
                con, live_files, without, lambda names: _scan(con, fetch(names, Path(folder)))
            )
    finally:
        con.disconnect()


class View:
    """The live rows of a store: those of the newest write of each run and each attempt."""

    def __init__(
        self,
        con: Any,  # an Ibis backend
        live_files: LiveFiles,
        without: Collection[str],
        scan: Callable[[Sequence[str]], ir.Table],
    ) -> None:
        self._con = con
        self._scan = scan
        self._writes = (
            live_files.manifest.writes & live_files.manifest.live_ids()
        )  # without those that a compaction has replaced
        self._files = [file for file in live_files.files if file.name not in without]
        runs = self._versions("runs", ["run_id"])
        attempts = self._versions("attempts", ["run_id", "attempt"])
        self._fresh = {version for versions in (runs, attempts) for version in versions.fresh}
        self._stale = {
            name: _select_stale(runs.stale if name == "runs" else attempts.stale, self._is_read)
            for name in TABLES
        }

    def get(self, rows: ir.Table) -> pyarrow.Table:
        """Evaluate an expression over the tables."""
        result: pyarrow.Table = self._con.to_pyarrow(rows)
        return result

    def tables(self, since: datetime | None = None, until: datetime | None = None) -> Tables:
        """All tables. `since` and `until` only skip files; rows must still be filtered."""
        first, last = (limit and limit.date().isoformat() for limit in (since, until))
        names = {
            file.name
            for file in self._files
            if file.table not in PRUNED_TABLES
            or ((not first or file.day >= first) and (not last or file.day <= last))
        }
        return Tables(lambda name: self.table(name, names))

    def table(self, name: str, file_names: Collection[str]) -> ir.Table:
        """The live rows of one table in the given files."""
        import ibis

        files = [f for f in self._files if f.name in file_names and self._is_read(f.write_id)]
        rows = self._read(name, files)
        stale = self._stale[name]
        return rows.anti_join(ibis.memtable(stale), stale.column_names) if len(stale) else rows

    def _is_read(self, write_id: str) -> bool:
        """Whether files of a write are read; not if all of its rows have been replaced."""
        return write_id not in self._writes or write_id in self._fresh

    def _versions(self, name: str, keys: list[str]) -> _Versions:
        """The newest version of each key.

        A write has one version per key. The largest write is only searched for keys that other
        writes have too, and it is always read, even if nothing in it is the newest.
        """
        sizes: dict[str, int] = defaultdict(int)
        for file in self._files:
            if file.table == name:
                sizes[file.write_id] += file.size
        largest = max(sizes, key=lambda write_id: (sizes[write_id], write_id), default="")
        others = [f for f in self._files if f.table == name and f.write_id != largest]
        if not others:
            empty = arrow.arrow_schema(TABLES[name]).empty_table()
            return _Versions({largest}, empty.select([*keys, "version"]))
        shared = self._read(name, others).select(keys).distinct()
        rows = self._read(name, self._files).semi_join(shared, keys)
        versions = _find_versions(self._con, rows, keys)
        return _Versions(versions.fresh | {largest}, versions.stale)

    def _read(self, name: str, files: Sequence[DataFile]) -> ir.Table:
        """All rows of one table in the files, in the current schema."""
        import ibis

        own_files = [file for file in files if file.table == name]
        parts = []
        for schema in sorted({file.schema for file in own_files}):
            names = [file.name for file in own_files if file.schema == schema]
            parts.append(migrate(TABLES[name], self._scan(names), schema))
        if not parts:
            return ibis.memtable(arrow.arrow_schema(TABLES[name]).empty_table())
        return ibis.union(*parts)


def _scan(con: Any, paths: Sequence[str]) -> ir.Table:
    """All rows of the files."""
    name = f"files_{secrets.token_hex(8)}"
    quoted = ", ".join("'" + glob.escape(path).replace("'", "''") + "'" for path in paths)
    con.raw_sql(f"CREATE VIEW {name} AS FROM read_parquet([{quoted}], hive_partitioning = false)")
    return con.table(name)


class _Versions(NamedTuple):
    """Versions that are the newest of some key, and the keys of rows with an older version."""

    fresh: set[str]
    stale: pyarrow.Table


def _find_versions(con: Any, rows: ir.Table, keys: list[str]) -> _Versions:
    import ibis

    newest = rows.version.max().over(ibis.window(group_by=keys))
    marked = rows.select(*keys, "version", newest=newest)
    is_newest = marked.version == marked.newest
    counts = con.to_pyarrow(
        marked.agg(by="version", rows=marked.count(), fresh=marked.count(where=is_newest))
    ).to_pylist()
    stale = marked.filter(~is_newest).drop("newest")
    # the usual case: no row is stale, so the files are read only once
    if all(row["rows"] == row["fresh"] for row in counts):
        stale = stale.limit(0)
    return _Versions(
        {row["version"] for row in counts if row["fresh"]}, con.to_pyarrow(stale).combine_chunks()
    )


def _select_stale(stale: pyarrow.Table, is_read: Callable[[str], bool]) -> pyarrow.Table:
    import pyarrow as pa

    return stale.filter(pa.array(map(is_read, stale["version"].to_pylist()), pa.bool_()))
