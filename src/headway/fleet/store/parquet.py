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

# A writer that took longer must not commit: what it has written may be taken for a dead one's.
WRITE_S = 3600.0


@dataclass(frozen=True)
class LiveFiles:
    """The files of a store that counted at one moment."""

    files: tuple[DataFile, ...]
    manifest: Manifest

    def of(self, table: str) -> list[DataFile]:
        """Those of one table."""
        return [file for file in self.files if file.table == table]


class Store:
    """A folder or a URL. Anybody may write to it and read from it at any time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files = open_fleet_files(url)
        self._checked = False  # to be a store

    def write(self, rows: Rows, *, as_of: float | None = None) -> str:
        """Add rows by table name, all or none of them; the version that they have there.

        They are durable when this returns. Rows of an attempt that is there already take the
        place of those; `as_of` is up to when they tell of it, in seconds since the epoch: of two
        writes the one that knows more counts, or the later one where that is not said. Every
        attempt that has rows must have one in `attempts`, and its run one in `runs`.
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
        """Make the place a store, unless it is something else."""
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
        """Whether a store lies there."""
        try:
            self.files.get(manifest.STORE_MARKER)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def check(self) -> None:
        """One sentence where there is no store to read."""
        if not self.exists():
            raise UsageError(
                f"there is no store at {self.url}; "
                f"make one with `headway ingest RUN --store {self.url}`",
                code="store-not-found",
                store=self.url,
            )

    def read_manifest(self) -> Manifest:
        """What is complete at this moment."""
        current = self._read_manifest()
        return self._read_manifest() if current.is_inconsistent() else current

    def _read_manifest(self) -> Manifest:
        """Writes before compactions: what a compaction replaces is deleted only later."""
        writes = manifest.marker_ids(
            (entry.name for entry in self.files.entries(manifest.COMMITS)), ".json"
        )
        names = [entry.name for entry in self.files.entries(manifest.COMPACTIONS)]
        finalized = manifest.marker_ids(names, ".settled")
        compactions: dict[str, frozenset[str]] = {}
        damaged = set()
        for write_id in manifest.marker_ids(names, ".json"):
            with contextlib.suppress(FileNotFoundError):  # replaced by a larger one meanwhile
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
        """What a compaction replaces, by its rows: they have the versions of their writes."""
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
        """All that lie there, whether they count or not."""
        files = []
        for table in TABLES:
            for entry in self.files.entries(table):
                file = manifest.parse_file_name(entry.name, entry.size)
                if file is not None:
                    files.append(file)
        return files

    def live_files(self) -> LiveFiles:
        """The files that count now; what is complete is asked first, so all of it is there."""
        self.check()
        current = self.read_manifest()
        live_ids = current.live_ids()
        files = tuple(file for file in self.data_files() if file.write_id in live_ids)
        newest = max((file.schema for file in files), default=SCHEMA)
        if newest > SCHEMA:
            raise NewerSchema(
                f"the store {self.url} has files of schema {newest}, and this Headway reads up to "
                f"{SCHEMA}; install a newer Headway",
                schema=newest,
            )
        return LiveFiles(files, current)


def to_tables(rows: Rows, version: str) -> dict[str, pyarrow.Table]:
    """Rows of one write as the schema wants them; RowsInvalid where they do not fit."""
    for name in rows:
        if name not in TABLES:
            raise RowsInvalid(
                f"there is no table {name!r}; the tables are {', '.join(TABLES)}",
                code="table-unknown",
                table=name,
            )
    tables = {
        name: arrow.to_arrow(TABLES[name], table_rows, version) for name, table_rows in rows.items()
    }
    _check_keys(tables)
    return tables


def _check_keys(tables: Mapping[str, pyarrow.Table]) -> None:
    """By its row in `attempts` a reader knows what is the newest of an attempt."""
    if not {"runs", "attempts"} <= tables.keys():
        raise RowsInvalid(
            "a write needs rows of the tables runs and attempts", code="table-missing"
        )
    attempts = arrow.attempt_keys(tables["attempts"])
    runs = set(tables["runs"]["run_id"].to_pylist())
    for name, table in tables.items():
        for run, attempt in arrow.attempt_keys(table) - attempts if name != "runs" else ():
            raise RowsInvalid(
                f"{name} has rows of attempt {attempt} of {run}, attempts has none",
                code="rows-without-attempt",
                table=name,
                run=run,
                attempt=attempt,
            )
    for run in {run for run, _ in attempts} - runs:
        raise RowsInvalid(
            f"attempts has rows of the run {run}, runs has none", code="rows-without-run", run=run
        )
