"""Files of other tools into a store: each run is one write, through the same rows as our own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError
from headway.fleet import readers
from headway.fleet.readers.record import build_ledger
from headway.fleet.readers.source import Source, read_source
from headway.fleet.rows import as_of, to_rows

if TYPE_CHECKING:
    from headway.fleet.database import Database
    from headway.fleet.store import Store


def read_sources(paths: Sequence[str]) -> list[Source]:
    """The files, and those in folders that are named."""
    found: list[Source] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(f"there is no file {path}", code="file-not-found")
        inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        found += map(read_source, inside)
    return found


def import_files(
    files: Sequence[Source], name: str | None, store: Store | Database, labels: Mapping[str, str]
) -> tuple[int, int]:
    """All runs in them; how many, and how many attempts they had. Files of a kind go together."""
    kinds: dict[str, list[Source]] = defaultdict(list)
    for source in files:
        kinds[name or readers.detect(source)].append(source)
    runs = attempts = 0
    for kind, alike in kinds.items():
        for record in readers.read_runs(kind, alike):
            found = build_ledger(record)
            store.write(to_rows(found, job=record.job, labels=labels), as_of=as_of(found))
            runs += 1
            attempts += len(found.attempts)
    return runs, attempts
