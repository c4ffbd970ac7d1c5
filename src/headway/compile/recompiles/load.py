"""A run on disk, or behind a URL, as the advisor reads it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.compile.recompiles.advice import Advice, advise
from headway.compile.recompiles.record import Record, collect
from headway.journal import folder, reader, remote


@dataclass(frozen=True)
class Loaded:
    """What `run.json` and the journals say."""

    identity: dict[str, Any]
    command: list[str]
    record: Record
    advice: Advice


def load(path: str) -> Loaded:
    """Read a run; also one that is still going on."""
    if "://" in path:
        with tempfile.TemporaryDirectory() as copy:
            remote.fetch(path, Path(copy))
            return _load(Path(copy))
    return _load(folder.find(path))


def _load(found: Path) -> Loaded:
    journals, _ = reader.read_journals(str(found / folder.JOURNAL))
    record = collect(journals)
    return Loaded(folder.read_identity(found), folder.read_command(found), record, advise(record))
