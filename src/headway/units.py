"""Parse and format durations and times: 90s, 5min, 2h, 7d, 2w, 2026-11-16."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from headway.errors import UsageError

NS = 1_000_000_000  # nanoseconds in a second
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
SHORT, LONG = 600.0, 3 * 3600.0  # decimal seconds below the first, hours from the second on
_DURATION = re.compile(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,6}})?) ?({'|'.join(UNITS)})")


def parse_duration(text: object) -> float | None:
    """Convert `5min` to seconds; None if the text is not a duration."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    return float(match[1]) * UNITS[match[2]] if match else None


def format_duration(value: float) -> str:
    """Format seconds in the largest unit that is exact, otherwise rounded."""
    for unit, size in reversed(UNITS.items()):
        if value >= size and round(value / size, 1) * size == value:
            if unit == "s" and value >= SHORT:
                break
            return f"{value / size:g}{unit}"
    if value < SHORT:
        return f"{value:.1f}s"
    return f"{value / 60:.1f}min" if value < LONG else f"{value / 3600:.1f}h"


def parse_time(text: str | None, now: datetime) -> datetime | None:
    """Parse a date, or a duration before `now`; the result is naive UTC, as `now` is."""
    if text is None:
        return None
    age = parse_duration(text)
    try:
        if age is not None:
            return now - timedelta(seconds=age)
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not a time; use, for example, 30d, 12h, 30min or 2026-11-16",
            code="time-invalid",
        ) from None
