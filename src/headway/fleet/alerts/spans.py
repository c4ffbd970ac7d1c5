"""Durations as people write them: 90s, 5min, 2h, 7d, 2w."""

from __future__ import annotations

import re

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
SHORT, LONG = 600.0, 3 * 3600.0  # below: seconds that are not round; above: hours
_SPAN = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,6}})?) ?({'|'.join(UNITS)})")


def seconds(text: object) -> float | None:
    """`5min` in seconds; None for what is no such text."""
    found = _SPAN.fullmatch(text) if isinstance(text, str) else None
    return float(found[1]) * UNITS[found[2]] if found else None


def span(value: float) -> str:
    """Seconds as a person says them: in the largest unit that fits, else nearly."""
    for unit, size in reversed(UNITS.items()):
        if value >= size and round(value / size, 1) * size == value:
            if unit == "s" and value >= SHORT:
                break
            return f"{value / size:g}{unit}"
    if value < SHORT:
        return f"{value:.1f}s"
    return f"{value / 60:.1f}min" if value < LONG else f"{value / 3600:.1f}h"
