"""The state of alerts, as `headway fleet alerts --list` and the one who watches see it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.fleet.alerts.state import AlertStateStore
from headway.fleet.store.parquet import Store
from tests.golden.cases import asked


def read(name: str, files: Path) -> Any:
    kept = AlertStateStore(Store(str(files / "store")))
    return {
        "list": asked("fleet", "alerts", "--store", str(files / "store"), "--list", "--json"),
        "state": asdict(kept.load()[0]),
        "acks": kept.acks(),
    }
