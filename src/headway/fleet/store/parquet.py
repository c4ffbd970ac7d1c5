"""Store of Parquet files in a folder or behind a URL; concurrent writers, no coordinator."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway import __version__
from headway.errors import HeadwayError, NewerSchema, UsageError
from headway.fleet.schema import SCHEMA, TABLES, VERSION, RowsInvalid
from headway.fleet.store import arrow, manifest
from headway.fleet.store.manifest import DataFile, Manifest
from headway.storage.fleet_files import open_fleet_files

if TYPE_CHECKING:
    import pyarrow


Rows = Mapping[str, "Sequence[Mapping[str, Any]] | pyarrow.Table"]

# A slower writer must not commit: its files may already count as those of a killed writer.
WRITE_S = 3600.0


@dataclass(frozen=True)
class LiveFiles:
    """The live files of a store at one moment."""

    files: tuple[DataFile, ...]
    manifest: Manifest

    def of(self, table: str) -> list[DataFile]:
        """The live files of one table."""
        return [file for file in self.files if file.table == table]


class Store:
    """A store in a folder or behind a URL. Any number of processes may read and write at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = open_fleet_files(url)
        self._checked = False  # that it is a store

    def write(self, rows: Rows, *, as_of: float | None = None) -> str:
        """Write rows by table name, all or nothing, and return the write ID.

        The rows are durable when this returns. `as_of` is the time up to which they describe their
        attempts, in seconds since the epoch; by default, now. Of two writes of an attempt the one
        with the later `as_of` counts. Every attempt that has rows needs a row in `attempts`, and
        its run a row in `runs`.
        """
        arrow.require_packages(*arrow.WRITE_PACKAGES)
        start = time.monotonic()
        version = manifest.new_write_id(as_of)
        tables = to_tables(rows, version)
        self._create_if_empty()
        for name, table in tables.items():
            for day, part in arrow.split_by_day(TABLES[name], table):
                self.files.put(
                    manifest.file_name(name, day, version, SCHEMA), arrow.to_parquet(part)
                )
        if time.monotonic() - start > WRITE_S:
            raise HeadwayError(
                f"writing to {self.url} took more than {WRITE_S:.0f} s; try again",
                code="store-too-slow",
            )
        content = {
            "schema": SCHEMA,
            "rows": {name: table.num_rows for name, table in tables.items()},
        }
        self.files.put(manifest.commit_marker(version), json.dumps(content).encode())
        return version

    def _create_if_empty(self) -> None:
        """Create the store, unless the folder contains something else."""
        if self._checked:
            return
        if not self.exists():
            if not self.files.is_empty() and not self.exists():
                raise UsageError(
                    f"{self.url} is not empty and is not a store; give another --store",
                    code="not-a-store",
                )
            content = {"store": "headway fleet", "schema": SCHEMA, "headway": __version__}
            self.files.put(manifest.STORE_MARKER, json.dumps(content).encode())
        self._checked = True

    def exists(self) -> bool:
        try:
            self.files.get(manifest.STORE_MARKER)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def check(self) -> None:
        """Raise UsageError if there is no store."""
        if not self.exists():
            raise UsageError(
                f"there is no store at {self.url}; "
                f"make one with `headway ingest RUN --store {self.url}`",
                code="store-not-found",
                store=self.url,
            )

    def read_manifest(self) -> Manifest:
        """The manifest of this moment."""
        current = self._read_manifest()
        return self._read_manifest() if current.is_inconsistent() else current

    def _read_manifest(self) -> Manifest:
        """Read writes before compactions: a compaction deletes what it replaces only later."""
        writes = manifest.marker_ids(
            (entry.name for entry in self.files.entries(manifest.COMMITS)), ".json"
        )
        names = [entry.name for entry in self.files.entries(manifest.COMPACTIONS)]
        finalized = manifest.marker_ids(names, ".settled")
        compactions: dict[str, frozenset[str]] = {}
        damaged = set()
        for write_id in manifest.marker_ids(names, ".json"):
            # replaced by a larger compaction meanwhile
            with contextlib.suppress(FileNotFoundError):
                replaces = manifest.from_marker(
                    self.files.get(manifest.compaction_marker(write_id))
                )
                if replaces is None and write_id in finalized:
                    replaces = manifest.from_marker(
                        self.files.get(manifest.finalized_marker(write_id))
                    )
                if replaces is None:
                    damaged.add(write_id)
                else:
                    compactions[write_id] = replaces
        for write_id in sorted(damaged & finalized):
            compactions[write_id] = self._replaced(write_id, compactions)
        return Manifest(writes, compactions, finalized & compactions.keys(), frozenset(damaged))

    def _replaced(self, write_id: str, others: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """What a compaction replaces, found in its rows: they keep the IDs of their writes."""
        versions = self._versions(write_id)
        return versions | {
            other
            for other, replaces in others.items()
            if write_id not in replaces and self._versions(other) & versions
        }

    def _versions(self, write_id: str) -> frozenset[str]:
        import pyarrow.parquet as pq

        versions: set[str] = set()
        for file in self.data_files():
            if file.write_id == write_id and file.table in ("runs", "attempts"):
                with contextlib.suppress(Exception), self.files.open(file.name) as content:
                    rows = pq.ParquetFile(content).read([VERSION.name])
                    versions.update(rows[VERSION.name].unique().to_pylist())
        return frozenset(versions)

    def data_files(self) -> list[DataFile]:
        """All data files, including those that do not count."""
        files = []
        for table in TABLES:
            for entry in self.files.entries(table):
                file = manifest.parse_file_name(entry.name, entry.size)
                if file is not None:
                    files.append(file)
        return files

    def live_files(self) -> LiveFiles:
        """The live files. The manifest is read first, so all of its files exist."""
        self.check()
        current = self.read_manifest()
        live_ids = current.live_ids()
        files = tuple(file for file in self.data_files() if file.write_id in live_ids)
        newest = max((file.schema for file in files), default=SCHEMA)
        if newest > SCHEMA:
            raise NewerSchema(
                f"the store {self.url} has files of schema {newest}, and this Headway supports up "
                f"to {SCHEMA}; install a newer Headway",
                schema=newest,
            )
        return LiveFiles(files, current)


def to_tables(rows: Rows, version: str) -> dict[str, pyarrow.Table]:
    """Convert the rows of one write to Arrow tables; RowsInvalid if they do not fit the schema."""
    for name in rows:
        if name not in TABLES:
            raise RowsInvalid(
                f"unknown table {name!r}; the tables are {', '.join(TABLES)}",
                code="table-unknown",
                table=name,
            )
    tables = {
        name: arrow.to_arrow(TABLES[name], table_rows, version) for name, table_rows in rows.items()
    }
    _check_keys(tables)
    return tables


def _check_keys(tables: Mapping[str, pyarrow.Table]) -> None:
    """Every row needs a row in `attempts`: readers find the newest write of an attempt there."""
    if not {"runs", "attempts"} <= tables.keys():
        raise RowsInvalid(
            "a write needs rows of the tables runs and attempts", code="table-missing"
        )
    attempts = arrow.attempt_keys(tables["attempts"])
    runs = set(tables["runs"]["run_id"].to_pylist())
    for name, table in tables.items():
        for run, attempt in arrow.attempt_keys(table) - attempts if name != "runs" else ():
            raise RowsInvalid(
                f"{name} has rows of attempt {attempt} of {run}, but attempts has none",
                code="rows-without-attempt",
                table=name,
                run=run,
                attempt=attempt,
            )
    for run in {run for run, _ in attempts} - runs:
        raise RowsInvalid(
            f"attempts has rows of the run {run}, but runs has none",
            code="rows-without-run",
            run=run,
        )
