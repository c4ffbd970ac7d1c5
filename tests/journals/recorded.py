"""Reads what `record.py` has recorded: run folders with packed journals."""

from __future__ import annotations

import gzip
import io
import json
import math
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from headway import run
from headway.journal import reader, run_files
from headway.ledger.model import Ledger
from headway.report import terminal
from headway.run import Run

FOLDER = Path(__file__).parent
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/about.toml"))
WIDTH = 100


def unpack(name: str, target: Path) -> Path:
    """The recorded run as a run folder: a new folder below `target`."""
    source, made = FOLDER / name, target / name
    (made / run_files.JOURNAL).mkdir(parents=True)
    for path in source.glob("*.json"):
        if path.name not in ("expected.json", "truth.json"):
            shutil.copyfile(path, made / path.name)
    for path in (source / run_files.JOURNAL).iterdir():
        content = gzip.decompress(path.read_bytes())
        (made / run_files.JOURNAL / path.name.removesuffix(".gz")).write_bytes(content)
    return made


@cache
def load(name: str) -> Run:
    """The recorded run, read as in the moment of the recording: nobody has ended since then."""
    still = mock.patch.object(reader, "SILENT_NS", math.inf)
    with still, tempfile.TemporaryDirectory() as temporary:
        return run.load(unpack(name, Path(temporary)))


def truth(name: str) -> dict[str, Any]:
    """What each process of the job has measured itself, by attempt and rank."""
    found: dict[str, Any] = json.loads((FOLDER / name / "truth.json").read_text())
    return found


def rendered(name: str) -> dict[str, str]:
    """The content of each file that is compared, by its name."""
    ledger = load(name).ledger
    return {
        "expected.json": json.dumps(load(name).to_dict(), indent=1) + "\n",
        "summary.txt": _shown(terminal.print_summary, ledger),
        "report.txt": _shown(terminal.print_report, ledger),
    }


def _shown(show: Any, ledger: Ledger) -> str:
    out = io.StringIO()
    show(ledger, f"headway/{ledger.run}", Console(file=out, width=WIDTH, _environ={}))
    return out.getvalue()
