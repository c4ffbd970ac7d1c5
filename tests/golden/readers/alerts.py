"""The state of alerts, as `headway fleet alerts --list` and the one who watches see it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.fleet.alerts.state import ALERT_KEYS, NOTIFICATION_KEYS, AlertStateStore, State
from headway.fleet.store.parquet import Store
from tests.golden.cases import asked


def read(name: str, files: Path) -> Any:
    state_store = AlertStateStore(Store(str(files / "store")))
    return {
        "list": asked("fleet", "alerts", "--store", str(files / "store"), "--list", "--json"),
        "state": _with_stored_keys(state_store.load()[0]),
        "acks": state_store.acks(),
    }


def _with_stored_keys(state: State) -> dict[str, Any]:
    """The fields of the state under the keys that they have in alerts.json."""
    values = asdict(state)
    return {
        "alerts": [_rename_keys(alert, ALERT_KEYS) for alert in values["alerts"]],
        "outbox": [_rename_keys(entry, NOTIFICATION_KEYS) for entry in values["outbox"]],
    }


def _rename_keys(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}
