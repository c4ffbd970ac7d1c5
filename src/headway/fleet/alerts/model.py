"""Alerts, what is to be sent of them, and how both are kept: data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headway.fleet.arrow import utc_datetime

PENDING, FIRING, ACKNOWLEDGED, RESOLVED = "pending", "firing", "acknowledged", "resolved"
TIME_FIELDS = ("since", "until")  # as texts where others read them


@dataclass(frozen=True)
class Sample:
    """What the store says of one slice of a rule, at one moment."""

    slice: str
    bad: bool
    text: str
    since: float | None = None  # since when it is bad, where the store knows
    value: float | None = None
    moment: float | None = None  # of a change: one nearby of the same slice is the same


@dataclass(frozen=True)
class Alert:
    """One rule in one slice, from the first bad reading until it is over; times are epochs."""

    id: str
    rule: str
    slice: str
    severity: str
    to: tuple[str, ...]
    state: str
    since: float  # since when it is bad
    first: float  # when that was seen first
    text: str
    value: float | None = None
    moment: float | None = None
    until: float | None = None
    good: float | None = None  # not bad any more since then, but not yet for long enough
    told: float | None = None  # when the last notification was made
    count: int = 0  # of notifications
    by: str | None = None  # who has acknowledged it


@dataclass(frozen=True)
class Notification:
    """One message to one channel; the id is the same however often it is tried."""

    id: str
    to: str
    made: float
    message: Mapping[str, Any]
    tries: int = 0
    due: float = 0.0  # not before that
    why: str = ""  # it was not taken last time


@dataclass(frozen=True)
class State:
    """All that is kept between rounds."""

    alerts: tuple[Alert, ...] = ()
    outbox: tuple[Notification, ...] = ()


def message(alert: Alert, event: str, number: int) -> dict[str, Any]:
    """What a receiver reads: `id` tells whether it was here before."""
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
    """What is pending stands apart: nobody has been told of it."""
    shown = [_to_dict(one) for one in state.alerts]
    return {
        "alerts": [one for one in shown if one["state"] != PENDING],
        "pending": [one for one in shown if one["state"] == PENDING],
        "outbox": [asdict(one) for one in state.outbox],
    }


def from_json(found: Mapping[str, Any]) -> State:
    """The same back; KeyError, TypeError or ValueError for what is no such thing."""
    alerts = [
        Alert(
            **{**one, "to": tuple(one["to"]), **{name: _epoch(one[name]) for name in TIME_FIELDS}}
        )
        for one in (*found["alerts"], *found["pending"])
    ]
    return State(tuple(alerts), tuple(Notification(**one) for one in found["outbox"]))


def _to_dict(alert: Alert) -> dict[str, Any]:
    return {**asdict(alert), **{name: to_iso(getattr(alert, name)) for name in TIME_FIELDS}}


def to_iso(seconds: float | None) -> str | None:
    """A moment in UTC as the pages read it."""
    return None if seconds is None else utc_datetime(seconds).isoformat()


def _epoch(text: str | None) -> float | None:
    if text is None:
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
