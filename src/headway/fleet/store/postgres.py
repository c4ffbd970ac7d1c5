"""Store of the same tables in PostgreSQL, in a schema of its own.

Transactions provide what file names provide in a store of files: a write is all or nothing, and
rows of an attempt replace older ones. There is nothing to compact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from headway.errors import HeadwayError, MissingExtra, NewerSchema, UsageError
from headway.fleet.schema import SCHEMA, TABLES, Table
from headway.fleet.store import arrow, manifest
from headway.fleet.store.parquet import Rows, to_tables
from headway.fleet.store.reader import QueryFn, QueryResult

if TYPE_CHECKING:
    import psycopg
    import pyarrow


SCHEMES = ("postgresql://", "postgres://")
PG_SCHEMA = "headway"  # schema of the tables in PostgreSQL
LOCK = 0x68656164776179  # advisory lock held while the tables are created
TYPES = {
    "string": "text",
    "int64": "bigint",
    "float64": "double precision",
    "bool": "boolean",
    "timestamp": "timestamp",
}


class Database:
    """A store in PostgreSQL, with the methods of `Store` for writing and querying."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.url = _without_password(url)

    def write(self, rows: Rows, *, as_of: float | None = None) -> str:
        """Write rows by table name, all or nothing, and return the write ID."""
        arrow.require_packages(*arrow.WRITE_PACKAGES)
        version = manifest.new_write_id(as_of)
        tables = to_tables(rows, version)
        with self._connect() as con:
            self._create_tables(con)
            for name, table in tables.items():
                _copy(con, TABLES[name], table)
            _replace_older(con, tables)
        return version

    def query(self, query_fn: QueryFn) -> QueryResult:
        """Run an Ibis expression over the tables."""
        arrow.require_packages(*arrow.READ_PACKAGES)
        import ibis

        with self._connect() as con:
            self._check(con)
            engine = ibis.postgres.from_connection(con)
            tables = {name: engine.table(name, database=PG_SCHEMA) for name in TABLES}
            return QueryResult(engine.to_pyarrow(query_fn(tables)), ())

    @contextlib.contextmanager
    def _connect(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("a store in PostgreSQL needs psycopg", extra="postgres") from None
        try:
            with psycopg.connect(self._url) as con:
                yield con
        except psycopg.Error as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise HeadwayError(
                f"{self.url} cannot be used: {reason}", code="store-unusable"
            ) from error

    def _exists(self, con: psycopg.Connection[Any]) -> bool:
        row = con.execute("SELECT to_regclass(%s)", [f"{PG_SCHEMA}.store"]).fetchone()
        return row is not None and row[0] is not None

    def _check(self, con: psycopg.Connection[Any]) -> None:
        if not self._exists(con):
            raise UsageError(
                f"there is no store at {self.url}; "
                f"make one with `headway ingest RUN --store {self.url}`",
                code="store-not-found",
                store=self.url,
            )
        self._check_schema(con)

    def _check_schema(self, con: psycopg.Connection[Any]) -> int:
        """The schema version of the store; raises NewerSchema if it is newer than this Headway."""
        row = con.execute(f"SELECT max(schema) FROM {PG_SCHEMA}.store").fetchone()
        schema = int(row[0]) if row and row[0] is not None else 0
        if schema > SCHEMA:
            raise NewerSchema(
                f"the store {self.url} has schema {schema}, and this Headway supports up to "
                f"{SCHEMA}; install a newer Headway"
            )
        return schema

    def _create_tables(self, con: psycopg.Connection[Any]) -> None:
        """Create missing tables and columns, one writer at a time."""
        if self._exists(con) and self._check_schema(con) == SCHEMA:
            return
        con.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {PG_SCHEMA}")
        con.execute(f"CREATE TABLE IF NOT EXISTS {PG_SCHEMA}.store (schema int PRIMARY KEY)")
        for table in TABLES.values():
            con.execute(f"CREATE TABLE IF NOT EXISTS {PG_SCHEMA}.{table.name} ({_columns(table)})")
            for column in table.columns:
                kind = TYPES[column.type]
                con.execute(
                    f"ALTER TABLE {PG_SCHEMA}.{table.name} "
                    f'ADD COLUMN IF NOT EXISTS "{column.name}" {kind}'
                )
            key = "run_id" if table.name == "runs" else "run_id, attempt"
            con.execute(
                f"CREATE INDEX IF NOT EXISTS {table.name}_key ON {PG_SCHEMA}.{table.name} ({key})"
            )
        con.execute(f"INSERT INTO {PG_SCHEMA}.store VALUES (%s) ON CONFLICT DO NOTHING", [SCHEMA])
        con.commit()


def _columns(table: Table) -> str:
    """Versions are compared byte by byte, regardless of the locale of the server."""
    return ", ".join(
        f'"{column.name}" {TYPES[column.type]}'
        + (' COLLATE "C"' if column.name == "version" else "")
        + (" NOT NULL" if column.required else "")
        for column in table.columns
    )


def _copy(con: psycopg.Connection[Any], table: Table, rows: pyarrow.Table) -> None:
    """Copy the rows to a temporary table of this transaction."""
    con.execute(f"CREATE TEMP TABLE new_{table.name} ({_columns(table)}) ON COMMIT DROP")
    names = ", ".join(f'"{name}"' for name in table.names)
    with con.cursor() as cursor, cursor.copy(f"COPY new_{table.name} ({names}) FROM STDIN") as to:
        for batch in rows.to_batches():
            columns = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                to.write_row(row)


def _replace_older(con: psycopg.Connection[Any], tables: Mapping[str, pyarrow.Table]) -> None:
    """Replace older rows by the new ones; writers of the same run wait for each other."""
    con.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended(run_id, 0)) "
        "FROM (SELECT DISTINCT run_id FROM new_runs ORDER BY run_id) AS runs"
    )
    for name, keys in (("runs", "run_id"), ("attempts", "run_id, attempt")):
        con.execute(
            f"CREATE TEMP TABLE newer_{name} ON COMMIT DROP AS SELECT {keys} FROM new_{name} new "
            f"WHERE NOT EXISTS (SELECT FROM {PG_SCHEMA}.{name} old WHERE "
            + " AND ".join(f"old.{key} = new.{key}" for key in keys.split(", "))
            + " AND old.version > new.version)"
        )
    for name in TABLES:
        keys = "run_id" if name == "runs" else "run_id, attempt"
        newer = "newer_runs" if name == "runs" else "newer_attempts"
        con.execute(
            f"DELETE FROM {PG_SCHEMA}.{name} WHERE ({keys}) IN (SELECT {keys} FROM {newer})"
        )
        if name in tables:
            names = ", ".join(f'"{column}"' for column in TABLES[name].names)
            con.execute(
                f"INSERT INTO {PG_SCHEMA}.{name} ({names}) SELECT {names} FROM new_{name} "
                f"WHERE ({keys}) IN (SELECT {keys} FROM {newer})"
            )


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))
