"""Quotas from a file: `tenant,gpus` on each line, or `tenant,gpus,day` for one that changes."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import UsageError
from headway.schedule.traces.trace import DAY


@dataclass(frozen=True, slots=True)
class Change:
    """A tenant's quota from a time of the trace on; seconds."""

    at: float
    tenant: str
    gpus: int


def read(path: Path) -> dict[str, int]:
    """By tenant, as they are at the start."""
    return {one.tenant: one.gpus for one in _lines(path) if not one.at}


def changes(path: Path) -> tuple[Change, ...]:
    """What changes later, by time."""
    return tuple(sorted((one for one in _lines(path) if one.at), key=lambda one: one.at))


def _lines(path: Path) -> list[Change]:
    """A first line of names is left out."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
        if rows and not rows[0][1].strip().isdecimal():
            rows = rows[1:]
        return [_line(*row) for row in rows]
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise UsageError(
            f"{path} is no list of quotas, `tenant,gpus` or `tenant,gpus,day` a line: {error}"
        ) from error


def _line(tenant: str, gpus: str, day: str = "0") -> Change:
    at = float(day) * DAY
    if not 0.0 <= at < float("inf"):
        raise ValueError(f"day {day} is not in the trace")
    return Change(at, tenant.strip(), int(gpus))


def check(first: Mapping[str, int], later: tuple[Change, ...], gpus: int) -> None:
    """At no time do they sum to more than there is."""
    now, at = dict(first), 0.0
    for change in (*later, None):
        if (change is None or change.at > at) and sum(now.values()) > gpus:
            when = f" on day {at / DAY:g}" if at else ""
            raise UsageError(f"quotas sum to {sum(now.values())} of {gpus}{when}; lower them")
        if change is not None:
            if change.tenant not in first or change.gpus < 0:
                raise UsageError(
                    f"on day {change.at / DAY:g} the quota of {change.tenant!r} becomes "
                    f"{change.gpus}; it must be 0 or more, and of a tenant that has one on day 0"
                )
            now[change.tenant], at = change.gpus, change.at
