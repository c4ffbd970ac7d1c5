"""Alerts, notifications, and how they are stored in the store.

    alerts.json            alerts, the outbox and the watcher; replaced atomically
    alerts/acks/ID.json    a user acknowledged the alert; removed once alerts.json records it

Only the watcher writes alerts.json, so two writers never overwrite each other.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headway.errors import NewerSchema, UsageError
from headway.fleet.store.arrow import utc_datetime
from headway.fleet.store.parquet import Store

PENDING, FIRING, ACKNOWLEDGED, RESOLVED = "pending", "firing", "acknowledged", "resolved"
TIME_FIELDS = ("since", "until")  # ISO 8601 in JSON, for other programs
# Field names whose keys in JSON differ.
ALERT_KEYS = {
    "receivers": "to",
    "first_seen_at": "first",
    "change_at": "moment",
    "ok_since": "good",
    "last_notified_at": "told",
    "acknowledged_by": "by",
}
NOTIFICATION_KEYS = {"receiver": "to", "created_at": "made", "error": "why"}


@dataclass(frozen=True)
class Sample:
    """The measurement of one slice of a rule."""

    slice: str
    is_bad: bool
    text: str
    since: float | None = None  # start of the violation, if known
    value: float | None = None
    change_at: float | None = None  # of a change; nearby changes of a slice are the same one


@dataclass(frozen=True)
class Alert:
    """A rule in one slice, from its first violation until it resolves; times are epoch seconds."""

    id: str
    rule: str
    slice: str
    severity: str
    receivers: tuple[str, ...]
    state: str
    since: float  # start of the violation
    first_seen_at: float  # when the violation was first measured
    text: str
    value: float | None = None
    change_at: float | None = None
    until: float | None = None
    ok_since: float | None = None  # no violation since then, but not yet for long enough
    last_notified_at: float | None = None
    count: int = 0  # of notifications
    acknowledged_by: str | None = None


@dataclass(frozen=True)
class Notification:
    """A message to one receiver; the ID stays the same for all tries."""

    id: str
    receiver: str
    created_at: float
    message: Mapping[str, Any]
    tries: int = 0
    due: float = 0.0  # time before which it is not sent
    error: str = ""  # of the last try


@dataclass(frozen=True)
class State:
    """Everything stored between rounds."""

    alerts: tuple[Alert, ...] = ()
    outbox: tuple[Notification, ...] = ()


def message(alert: Alert, event: str, number: int) -> dict[str, Any]:
    """The message for receivers; an `id` that was received before is a repetition."""
    return {
        "id": f"{alert.id}.{number}",
        "event": event,
        "text": f"{event}: {alert.rule}: {alert.text}",
        "alert": {
            "id": alert.id,
            "rule": alert.rule,
            "severity": alert.severity,
            "slice": alert.slice,
            "state": alert.state,
            "since": to_iso(alert.since),
            "until": to_iso(alert.until),
            "text": alert.text,
            "value": alert.value,
        },
    }


def to_json(state: State) -> dict[str, Any]:
    """Pending alerts are listed separately: receivers have not been notified of them."""
    alerts = [_to_dict(alert) for alert in state.alerts]
    return {
        "alerts": [alert for alert in alerts if alert["state"] != PENDING],
        "pending": [alert for alert in alerts if alert["state"] == PENDING],
        "outbox": [
            _rename_keys(asdict(notification), NOTIFICATION_KEYS) for notification in state.outbox
        ],
    }


def from_json(content: Mapping[str, Any]) -> State:
    """The inverse of `to_json`; raises KeyError, TypeError or ValueError for invalid content."""
    alerts = [_to_alert(alert) for alert in (*content["alerts"], *content["pending"])]
    fields = {key: name for name, key in NOTIFICATION_KEYS.items()}
    outbox = [Notification(**_rename_keys(entry, fields)) for entry in content["outbox"]]
    return State(tuple(alerts), tuple(outbox))


def _to_dict(alert: Alert) -> dict[str, Any]:
    times = {name: to_iso(getattr(alert, name)) for name in TIME_FIELDS}
    return _rename_keys({**asdict(alert), **times}, ALERT_KEYS)


def _to_alert(alert: Mapping[str, Any]) -> Alert:
    fields = {key: name for name, key in ALERT_KEYS.items()}
    times = {name: _epoch(alert[name]) for name in TIME_FIELDS}
    return Alert(**_rename_keys({**alert, "to": tuple(alert["to"]), **times}, fields))


def _rename_keys(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in values.items()}


def to_iso(seconds: float | None) -> str | None:
    """A time in ISO 8601, in UTC without a time zone."""
    return None if seconds is None else utc_datetime(seconds).isoformat()


def _epoch(text: str | None) -> float | None:
    if text is None:
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


STATE_FILE = "alerts.json"
ACKS = "alerts/acks"
STATE_SCHEMA = 1


class AlertStateStore:
    """The state of the alerts of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = store.files

    def load(self) -> tuple[State, dict[str, Any] | None]:
        """The state and the active watcher; both empty if there was never one."""
        try:
            content = json.loads(self._files.get(STATE_FILE))
        except FileNotFoundError:
            return State(), None
        except (ValueError, RecursionError):
            content = None
        path = self._files.path(STATE_FILE)
        schema = content.get("schema") if isinstance(content, dict) else None
        if type(schema) is int and schema > STATE_SCHEMA:
            raise NewerSchema(
                f"{path} has schema {schema}, and this Headway supports up to {STATE_SCHEMA}; "
                "install a newer Headway"
            )
        try:
            return from_json(content), _watcher(content.get("watcher"))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise UsageError(
                f"{path} is damaged or is not a file of `headway fleet alerts`; "
                "move it away to start over",
                code="alerts-file-damaged",
            ) from None

    def claim(self, now: float) -> State:
        """The state, if no other process watches the store."""
        state, watcher = self.load()
        if watcher is not None and float(watcher["until"]) > now and not _is_dead(watcher):
            raise UsageError(
                f"process {watcher['pid']} on {watcher['host']} is already watching "
                f"{self._store.url}; only one process can",
                code="store-watched",
                pid=watcher["pid"],
                host=watcher["host"],
            )
        return state

    def save(self, state: State, until: float | None) -> None:
        """Store the state durably; `until` is the time up to which this watcher counts as alive."""
        content: dict[str, Any] = {"schema": STATE_SCHEMA, **to_json(state), "watcher": None}
        if until is not None:
            content["watcher"] = {"host": socket.gethostname(), "pid": os.getpid(), "until": until}
        self._files.put(STATE_FILE, json.dumps(content, indent=1).encode(), private=True)

    def acks(self) -> dict[str, str | None]:
        """Acknowledged alerts, with the name of the user."""
        acks: dict[str, str | None] = {}
        for entry in self._files.entries(ACKS):
            name = entry.name.rpartition("/")[2]
            if name.startswith(".") or not name.endswith(".json"):
                continue
            try:
                content = json.loads(self._files.get(entry.name))
                acks[name.removesuffix(".json")] = content.get("by")
            except (FileNotFoundError, ValueError, AttributeError, RecursionError):
                continue
        return acks

    def acknowledge(self, alert: str, by: str | None) -> None:
        """Acknowledge an alert; the watcher reads it in its next round."""
        self._files.put(f"{ACKS}/{alert}.json", json.dumps({"by": by}).encode())

    def delete_ack(self, alert: str) -> None:
        """Delete an acknowledgement that the state already contains."""
        self._files.delete(f"{ACKS}/{alert}.json")


def _watcher(content: Any) -> dict[str, Any] | None:
    """The active watcher; raises ValueError or a similar error for invalid content."""
    if content is None:
        return None
    return {
        "host": str(content["host"]),
        "pid": int(content["pid"]),
        "until": float(content["until"]),
    }


def _is_dead(watcher: dict[str, Any]) -> bool:
    """Whether the watcher was a process of this machine that has ended."""
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
