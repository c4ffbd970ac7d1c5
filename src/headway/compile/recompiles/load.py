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
class RecordedRun:
    """What `run.json` and the journals say."""

    identity: dict[str, Any]
    command: list[str]
    record: Record
    advice: Advice


def load_run(path: str) -> RecordedRun:
    """Read a run; also one that is still going on."""
    if "://" in path:
        with tempfile.TemporaryDirectory() as copy:
            remote.fetch_run(path, Path(copy))
            return _load_folder(Path(copy))
    return _load_folder(folder.find_run(path))


def _load_folder(found: Path) -> RecordedRun:
    journals, _ = reader.read_journals(str(found / folder.JOURNAL))
    record = collect(journals)
    return RecordedRun(
        folder.read_identity(found), folder.read_command(found), record, advise(record)
    )
