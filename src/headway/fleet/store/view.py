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

# From a schema to the next one, by table: what was renamed or is counted differently. A column
# that is only new needs no step, it is null in old files; one that is gone needs none either.
STEPS: Mapping[int, Mapping[str, Step]] = {}


def migrate(table: Table, rows: ir.Table, schema: int) -> ir.Table:
    """A table that was read from files of that schema, with the columns of today."""
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


# In these every row has its own time, so files of other days need not be opened.
PRUNED_TABLES = ("hours", "buckets", "failures", "checkpoints", "compiles")


class Tables(dict[str, "ir.Table"]):
    """Tables by name; one that nobody asks for costs nothing."""

    def __init__(self, make: Callable[[str], ir.Table]) -> None:
        self._make = make

    def __missing__(self, name: str) -> ir.Table:
        self[name] = self._make(name)
        return self[name]


@contextlib.contextmanager
def open_view(
    store: Store, live_files: LiveFiles, *, without: Collection[str] = ()
) -> Iterator[View]:
    """A snapshot on a DuckDB in this process; files from afar are fetched when they are needed."""
    import ibis

    con = ibis.duckdb.connect(preserve_insertion_order=False)
    try:
        # It would come on stdout after two seconds, into the midst of JSON or CSV.
        con.raw_sql("SET enable_progress_bar = false")
        with tempfile.TemporaryDirectory(prefix="headway-store-") as folder:
            fetch = store.files.fetch
            yield View(
                con, live_files, without, lambda names: _scan(con, fetch(names, Path(folder)))
            )
    finally:
        con.disconnect()


class View:
    """The rows of a snapshot that count: of each run and each attempt those of the newest write."""

    def __init__(
        self,
        con: Any,  # a backend of Ibis
        live_files: LiveFiles,
        without: Collection[str],
        scan: Callable[[Sequence[str]], ir.Table],
    ) -> None:
        self._con = con
        self._scan = scan
        self._writes = (
            live_files.manifest.writes & live_files.manifest.live_ids()
        )  # not those in compacted files
        self._files = [file for file in live_files.files if file.name not in without]
        runs = self._versions("runs", ["run_id"])
        attempts = self._versions("attempts", ["run_id", "attempt"])
        self._fresh = {version for versions in (runs, attempts) for version in versions.fresh}
        self._stale = {
            name: _select_stale(
                runs.stale if name == "runs" else attempts.stale, self._lies_in_files
            )
            for name in TABLES
        }

    def get(self, rows: ir.Table) -> pyarrow.Table:
        """What an expression over the tables gives."""
        result: pyarrow.Table = self._con.to_pyarrow(rows)
        return result

    def tables(self, since: datetime | None = None, until: datetime | None = None) -> Tables:
        """Every table; `since` and `until` only spare files, rows are still to be filtered."""
        first, last = (limit and limit.date().isoformat() for limit in (since, until))
        names = {
            file.name
            for file in self._files
            if file.table not in PRUNED_TABLES
            or ((not first or file.day >= first) and (not last or file.day <= last))
        }
        return Tables(lambda name: self.table(name, names))

    def table(self, name: str, file_names: Collection[str]) -> ir.Table:
        """The rows of one table that lie in the wanted files and count."""
        import ibis

        files = [f for f in self._files if f.name in file_names and self._lies_in_files(f.write_id)]
        rows = self._read(name, files)
        stale = self._stale[name]
        return rows.anti_join(ibis.memtable(stale), stale.column_names) if len(stale) else rows

    def _lies_in_files(self, write_id: str) -> bool:
        """Whether a stem's files are read: not those of a write of which nothing is the newest."""
        return write_id not in self._writes or write_id in self._fresh

    def _versions(self, name: str, keys: list[str]) -> _Versions:
        """Within a stem a key has one version: the largest stem is only asked for what others have.

        Whether anything of the largest is the newest is not asked either: it is read anyway.
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
        """All rows of some files of one table, in the schema of today."""
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
    """All rows of files."""
    name = f"files_{secrets.token_hex(8)}"
    quoted = ", ".join("'" + glob.escape(path).replace("'", "''") + "'" for path in paths)
    con.raw_sql(f"CREATE VIEW {name} AS FROM read_parquet([{quoted}], hive_partitioning = false)")
    return con.table(name)


class _Versions(NamedTuple):
    """The versions of rows: those that are the newest of some key, and keys with an older one."""

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
    if all(row["rows"] == row["fresh"] for row in counts):  # mostly: the files are read once
        stale = stale.limit(0)
    return _Versions(
        {row["version"] for row in counts if row["fresh"]}, con.to_pyarrow(stale).combine_chunks()
    )


def _select_stale(stale: pyarrow.Table, is_read: Callable[[str], bool]) -> pyarrow.Table:
    import pyarrow as pa

    return stale.filter(pa.array(map(is_read, stale["version"].to_pylist()), pa.bool_()))
