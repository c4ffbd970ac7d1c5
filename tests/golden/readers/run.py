"""Run folders: the ledger of each, and what the next run learns from a ledger on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.session.learning import baseline
from tests.golden.cases import asked


def read(name: str, files: Path) -> Any:
    run = files / "run"
    found = {"ledger": asked("report", str(run), "--json")}
    if (run / "ledger.json").exists():
        found["learned"] = asdict(baseline(json.loads((run / "ledger.json").read_text())))
    return found
