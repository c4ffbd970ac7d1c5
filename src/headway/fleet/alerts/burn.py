"""How long an agreed limit was not kept, hour by hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HOUR = 3600.0


class BudgetUse(NamedTuple):
    """Seconds of a stretch of time in which it was not kept, and when they began."""

    seconds: float
    since: float | None


def budget_use(hours: Mapping[float, bool], now: float, over: float) -> BudgetUse:
    """Over the time before `now`, given the hours of which something is known."""
    begin, total, since = now - over, 0.0, None
    hour = begin // HOUR * HOUR
    while hour < now:
        if _is_bad(hours, hour, now):
            since = max(hour, begin) if since is None else since
            total += min(hour + HOUR, now) - max(hour, begin)
        hour += HOUR
    return BudgetUse(total, since)


def _is_bad(hours: Mapping[float, bool], hour: float, now: float) -> bool:
    """An hour of which nothing is known is bad between two bad ones, and while it is not over."""
    if hour in hours:
        return hours[hour]
    before = max((one for one in hours if one < hour), default=None)
    after = min((one for one in hours if one > hour), default=None)
    if before is None or not hours[before]:
        return False
    if after is None:
        return hour + HOUR > now and before == hour - HOUR
    return hours[after]
