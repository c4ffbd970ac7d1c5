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
    r"(?P<table>\w+)/day=(?P<day>\d{4}-\d\d-\d\d)/(?P<stem>[\w-]+)\.s(?P<schema>\d+)\.parquet"
)


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a store."""

    name: str
    table: str
    day: str
    stem: str
    schema: int
    size: int


@dataclass(frozen=True)
class Manifest:
    """What is complete in a store."""

    writes: frozenset[str] = frozenset()
    compactions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # and what it replaces
    settled: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()  # compactions whose marker cannot be read

    def in_force(self) -> list[str]:
        """The compactions that count."""
        taken: set[str] = set()
        found = []
        for stem in sorted(self.compactions, key=lambda one: (one not in self.settled, one)):
            replaced = self.compactions[stem]
            whole = stem in self.settled or not self.missing(stem)
            if whole and not replaced & taken:
                taken |= replaced
                found.append(stem)
        return found

    def missing(self, stem: str) -> frozenset[str]:
        """What a compaction replaces and is not there."""
        return self.compactions[stem] - self.writes - self.compactions.keys()

    def live(self) -> frozenset[str]:
        """The stems whose rows count."""
        counted = self.in_force()
        replaced = frozenset[str]().union(*(self.compactions[stem] for stem in counted))
        return (self.writes | frozenset(counted)) - replaced

    def unclear(self) -> bool:
        """Whether something was deleted while this was read: then it should be read again."""
        return any(self.missing(stem) for stem in self.compactions if stem not in self.settled)


def new_write_id(as_of: float | None = None) -> str:
    """A name for a write; of two, the one that knows more of a run sorts last."""
    now = time.time()
    known = now if as_of is None else as_of
    return f"{round(known * 1000):013d}-{round(now * 1000):013d}-{secrets.token_hex(4)}"


def file_name(table: str, day: str, stem: str, schema: int) -> str:
    """Where rows of a table lie."""
    return f"{table}/day={day}/{stem}.s{schema}.parquet"


def commit_marker(stem: str) -> str:
    """The marker of a write."""
    return f"{COMMITS}/{stem}.json"


def compaction_marker(stem: str) -> str:
    """The marker of a compaction."""
    return f"{COMPACTIONS}/{stem}.json"


def to_marker(replaces: Iterable[str], schema: int) -> bytes:
    """What the marker of a compaction says."""
    names = sorted(replaces)
    return json.dumps({"schema": schema, "replaces": names, "check": _checksum(names)}).encode()


def from_marker(content: bytes) -> frozenset[str] | None:
    """What a compaction replaces; None where its marker is damaged."""
    try:
        told = json.loads(content)
        names = told["replaces"]
        whole = told.get("check", _checksum(names)) == _checksum(names)  # older ones have none
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return frozenset(names) if whole and isinstance(names, list) and names else None


def _checksum(names: list[str]) -> str:
    return hashlib.sha256("\n".join(names).encode("utf-8", "replace")).hexdigest()[:16]


def finalized_marker(stem: str) -> str:
    """The marker of a compaction that can no longer lose."""
    return f"{COMPACTIONS}/{stem}.settled"


def parse_file_name(name: str, size: int) -> DataFile | None:
    """The file that a name is of; None for what is none of ours."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    return DataFile(name, found["table"], found["day"], found["stem"], int(found["schema"]), size)


def marker_ids(names: Iterable[str], suffix: str) -> frozenset[str]:
    """The stems of the markers with that suffix."""
    return frozenset(
        name.rpartition("/")[2].removesuffix(suffix)
        for name in names
        if name.endswith(suffix) and not name.rpartition("/")[2].startswith(".")
    )
