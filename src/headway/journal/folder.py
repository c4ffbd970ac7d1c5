"""The run folder: `run.json`, `journal/`, and what is computed from them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from headway.errors import NotARun, RunNotFound

JOURNAL = "journal"
RUN_JSON = "run.json"
LEDGER_JSON = "ledger.json"
REPORT_HTML = "report.html"


def find(path: str | os.PathLike[str]) -> Path:
    """The run folder at `path`, or one sentence that says what is there instead."""
    folder = Path(path)
    if not folder.exists():
        raise RunNotFound(f"there is no run at {folder}; type `ls headway` to see your runs")
    if not folder.is_dir() or not (folder / JOURNAL).is_dir():
        raise NotARun(
            f"{folder} is not a run folder (it has no {JOURNAL}/); "
            "make one with `headway run -- YOUR COMMAND`"
        )
    return folder


def read_identity(folder: Path) -> dict[str, Any]:
    """What run.json says; empty when it is missing or torn."""
    try:
        found = json.loads((folder / RUN_JSON).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_atomically(path: Path, content: str | bytes) -> None:
    """A reader sees the old file or the new one, never half of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
