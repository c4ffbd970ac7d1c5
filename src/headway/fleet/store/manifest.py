"""Decide which files of a store are live: pure functions over the names of its objects.

    store.json                                 marks the folder as a store
    TABLE/day=2026-11-16/ID.s1.parquet         rows; s1 is their schema version
    commits/ID.json                            the write ID is complete: its rows count
    compactions/ID.json                        the compaction is complete, and the IDs it replaces
    compactions/ID.settled                     the compaction is finalized; a copy of its marker

Every write and every compaction has an ID. Objects are never changed in place. Files of an ID
without a commit belong to a writer that is still running or was killed.

Two compactions may replace the same write. Then one is active, the same for every reader: a
finalized one, otherwise the one that was started first. Only what a finalized compaction replaces
is ever deleted, so an unfinalized one is active only while everything it replaces is complete.
Therefore, if the marker of an unfinalized compaction is damaged, everything it replaces is still
present and is read instead.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STORE_MARKER = "store.json"
COMMITS = "commits"
COMPACTIONS = "compactions"

_FILE = re.compile(
    r"(?P<table>\w+)/day=(?P<day>\d{4}-\d\d-\d\d)/(?P<write_id>[\w-]+)\.s(?P<schema>\d+)\.parquet"
)


@dataclass(frozen=True)
class DataFile:
    name: str
    table: str
    day: str
    write_id: str
    schema: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """The complete writes and compactions of a store."""

    writes: frozenset[str] = frozenset()
    # and the IDs it replaces
    compactions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    finalized: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()  # compactions whose marker cannot be read

    def active_compactions(self) -> list[str]:
        """The compactions whose files are read instead of those they replace."""
        superseded: set[str] = set()
        active = []
        for write_id in sorted(
            self.compactions, key=lambda candidate: (candidate not in self.finalized, candidate)
        ):
            replaced = self.compactions[write_id]
            is_complete = write_id in self.finalized or not self.missing(write_id)
            if is_complete and not replaced & superseded:
                superseded |= replaced
                active.append(write_id)
        return active

    def missing(self, write_id: str) -> frozenset[str]:
        """IDs that a compaction replaces and that no longer exist."""
        return self.compactions[write_id] - self.writes - self.compactions.keys()

    def live_ids(self) -> frozenset[str]:
        """The write IDs whose rows count."""
        active = self.active_compactions()
        replaced = frozenset[str]().union(*(self.compactions[write_id] for write_id in active))
        return (self.writes | frozenset(active)) - replaced

    def is_inconsistent(self) -> bool:
        """Whether files were deleted during the read, so that it must be repeated."""
        return any(
            self.missing(write_id)
            for write_id in self.compactions
            if write_id not in self.finalized
        )


def new_write_id(as_of: float | None = None) -> str:
    """A new write ID; the write with the later `as_of` sorts last."""
    now = time.time()
    timestamp = now if as_of is None else as_of
    return f"{round(timestamp * 1000):013d}-{round(now * 1000):013d}-{secrets.token_hex(4)}"


def file_name(table: str, day: str, write_id: str, schema: int) -> str:
    """The name of the file with the rows of a table and a day."""
    return f"{table}/day={day}/{write_id}.s{schema}.parquet"


def commit_marker(write_id: str) -> str:
    """The name of the commit marker of a write."""
    return f"{COMMITS}/{write_id}.json"


def compaction_marker(write_id: str) -> str:
    """The name of the marker of a compaction."""
    return f"{COMPACTIONS}/{write_id}.json"


def to_marker(replaces: Iterable[str], schema: int) -> bytes:
    """The content of the marker of a compaction."""
    names = sorted(replaces)
    return json.dumps({"schema": schema, "replaces": names, "check": _checksum(names)}).encode()


def from_marker(content: bytes) -> frozenset[str] | None:
    """The IDs that a compaction replaces; None if its marker is damaged."""
    try:
        data = json.loads(content)
        names = data["replaces"]
        # absent in older markers
        is_valid = data.get("check", _checksum(names)) == _checksum(names)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return frozenset(names) if is_valid and isinstance(names, list) and names else None


def _checksum(names: list[str]) -> str:
    return hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]


def finalized_marker(write_id: str) -> str:
    """The name of the marker of a finalized compaction."""
    return f"{COMPACTIONS}/{write_id}.settled"


def parse_file_name(name: str, size: int) -> DataFile | None:
    """Parse the name of a data file; None if it is not one."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    return DataFile(
        name, match["table"], match["day"], match["write_id"], int(match["schema"]), size
    )


def marker_ids(names: Iterable[str], suffix: str) -> frozenset[str]:
    """The write IDs of the markers with this suffix."""
    return frozenset(
        name.rpartition("/")[2].removesuffix(suffix)
        for name in names
        if name.endswith(suffix) and not name.rpartition("/")[2].startswith(".")
    )
