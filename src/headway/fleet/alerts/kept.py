"""The state in the store: `alerts.json` of the one who watches, acknowledgements of all others.

    alerts.json            alerts, the outbox, and who watches; written whole or not at all
    alerts/acks/ID.json    somebody has acknowledged that alert; gone when alerts.json says so

Nobody but the one who watches writes alerts.json, so nothing is ever lost between two.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from headway.errors import NewerSchema, UsageError
from headway.fleet.alerts.model import State, from_json, to_json
from headway.fleet.store import Store

STATE_FILE = "alerts.json"
ACKS = "alerts/acks"
STATE_SCHEMA = 1


class AlertStateStore:
    """Reads and writes it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place = store.place

    def load(self) -> tuple[State, dict[str, Any] | None]:
        """What is known, and who watches; nothing at all where nobody ever did."""
        try:
            told = json.loads(self._place.get(STATE_FILE))
        except FileNotFoundError:
            return State(), None
        except (ValueError, RecursionError):
            told = None
        where = self._place.path(STATE_FILE)
        schema = told.get("schema") if isinstance(told, dict) else None
        if type(schema) is int and schema > STATE_SCHEMA:
            raise NewerSchema(
                f"{where} has schema {schema}, and this Headway knows up to {STATE_SCHEMA}; "
                "install a newer Headway"
            )
        try:
            return from_json(told), _watcher(told.get("watcher"))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise UsageError(
                f"{where} is damaged, or not of `headway fleet alerts`; move it away to begin anew",
                code="alerts-file-damaged",
            ) from None

    def claim(self, now: float) -> State:
        """The state, if nobody else watches."""
        state, watcher = self.load()
        if watcher is not None and float(watcher["until"]) > now and not _is_dead(watcher):
            raise UsageError(
                f"process {watcher['pid']} on {watcher['host']} watches {self._store.url} already; "
                "only one can",
                code="store-watched",
                pid=watcher["pid"],
                host=watcher["host"],
            )
        return state

    def save(self, state: State, until: float | None) -> None:
        """Durable when this returns; `until` is how long others take us for alive."""
        told: dict[str, Any] = {"schema": STATE_SCHEMA, **to_json(state), "watcher": None}
        if until is not None:
            told["watcher"] = {"host": socket.gethostname(), "pid": os.getpid(), "until": until}
        self._place.put(STATE_FILE, json.dumps(told, indent=1).encode(), private=True)

    def acks(self) -> dict[str, str | None]:
        """Alerts that were acknowledged, and by whom."""
        found: dict[str, str | None] = {}
        for entry in self._place.entries(ACKS):
            name = entry.name.rpartition("/")[2]
            if name.startswith(".") or not name.endswith(".json"):
                continue
            try:
                told = json.loads(self._place.get(entry.name))
                found[name.removesuffix(".json")] = told.get("by")
            except (FileNotFoundError, ValueError, AttributeError, RecursionError):
                continue
        return found

    def acknowledge(self, alert: str, by: str | None) -> None:
        """Leave word for the one who watches."""
        self._place.put(f"{ACKS}/{alert}.json", json.dumps({"by": by}).encode())

    def forget(self, alert: str) -> None:
        """The state has it now."""
        self._place.delete(f"{ACKS}/{alert}.json")


def _watcher(told: Any) -> dict[str, Any] | None:
    """Who watches; ValueError or the like for what is no such thing."""
    if told is None:
        return None
    return {"host": str(told["host"]), "pid": int(told["pid"]), "until": float(told["until"])}


def _is_dead(watcher: dict[str, Any]) -> bool:
    """Whether it was a process of this machine, and is no more."""
    if watcher["host"] != socket.gethostname():
        return False
    if watcher["pid"] == os.getpid():
        return True
    try:
        os.kill(int(watcher["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
