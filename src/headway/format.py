"""Formats values for people: durations, percentages, counts, and untrusted text."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from headway import redact
from headway.units import NS


def duration(ns: int) -> str:
    """Format with at most two units: `4 m 02 s`."""
    if ns < 0:
        return f"-{duration(-ns)}"
    if ns == 0:
        return "0 s"
    if ns < 999_500_000:
        return f"{ns / 1e6:.0f} ms" if ns >= 9_950_000 else f"{ns / 1e6:.1f} ms"
    if ns < 59_950_000_000:
        return f"{ns / NS:.1f} s"
    seconds = round(ns / NS)
    if seconds < 3600:
        return f"{seconds // 60} m {seconds % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} m"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24:02d} h"


def percent(value: float) -> str:
    """Format with one decimal; only the exact values give `0.0 %` and `100.0 %`."""
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return "99.9 %"
    return f"{value:.1f} %"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 rank`, `2 ranks`, `3,400 steps`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def truncate_left(text: str, width: int) -> str:
    """Shorten to `width` characters from the left: the end of a path is the specific part."""
    clean = one_line(text, 10_000)
    return clean if len(clean) <= width else f"...{clean[3 - width :]}"


def one_line(text: str, limit: int | None = None) -> str:
    """Return text of a job as one line without secrets, escape sequences or control characters."""
    text = redact.text(_ESCAPES.sub("", text))
    clean = " ".join(printable(text).split())
    if limit is not None and len(clean) > limit:
        return clean[: max(limit - 3, 0)] + "..."
    return clean


def printable(text: str) -> str:
    """Replace each character that could control a terminal by a space; the length stays."""
    return "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in text)


# Sequences that color text, move the cursor or set the title of a terminal.
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
