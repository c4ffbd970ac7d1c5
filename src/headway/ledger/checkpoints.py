"""What Checkpointers tell of their saves: see headway/checkpoint/record.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from headway.ledger.attempts import Draft
from headway.ledger.life import Life
from headway.ledger.model import NS, Rhythm, Saved

LEVELS = ("memory", "disk")


def saved(drafts: Sequence[Draft], zero: int) -> tuple[Saved, ...]:
    """Each save of all ranks, in the order in which its end was known."""
    found: dict[tuple[int, int, str], Saved] = {}
    for index, draft in enumerate(drafts):
        for life in draft.lives:
            for event in _events(life, "checkpoint"):
                one = _saved(index, event, event["t"] + life.shift - zero)
                key = (one.attempt, one.step, one.level)
                found[key] = _together(found[key], one) if key in found else one
    return tuple(sorted(found.values(), key=lambda one: (one.at, one.step, one.level)))


def rhythms(drafts: Sequence[Draft]) -> tuple[Rhythm, ...]:
    """Of each level what was said last, by the lowest rank that says it: rank 0's counts."""
    found = {}
    for draft in drafts:
        for life in sorted(draft.lives, key=lambda life: -life.rank):
            for event in _events(life, "checkpoint"):
                if (interval := _seconds(event.get("interval_s"))) is not None:
                    found[event["level"]] = _rhythm(event, interval)
    return tuple(found[level] for level in LEVELS if level in found)


def resumed_by(draft: Draft) -> str | None:
    """Which level the attempt went on from."""
    for life in sorted(draft.lives, key=lambda life: life.rank):
        for event in _events(life, "restored"):
            first = life.first_step_end
            if first is None or event["t"] + life.shift < first:
                return str(event["level"])
    return None


def _events(life: Life, name: str) -> Iterator[dict[str, Any]]:
    for event in life.journal.named(name):
        if event.get("level") in LEVELS and type(event.get("step")) is int:
            yield event


def _saved(attempt: int, event: dict[str, Any], at: int) -> Saved:
    size = event.get("bytes")
    return Saved(
        attempt=attempt,
        step=event["step"],
        at=at,
        level=event["level"],
        blocked=_ns(event.get("blocked_s")),
        slower=_ns(event.get("slower_s")),
        durable=_ns(event.get("durable_s")),
        size=size if type(size) is int and size > 0 else 0,
        error=str(event.get("error") or ""),
    )


def _together(one: Saved, other: Saved) -> Saved:
    """Of two ranks: it is there when the last one has it, and failed if one has."""
    return Saved(
        attempt=one.attempt,
        step=one.step,
        at=max(one.at, other.at),
        level=one.level,
        blocked=max(one.blocked, other.blocked),
        slower=max(one.slower, other.slower),
        durable=max(one.durable, other.durable),
        size=one.size + other.size,
        error=one.error or other.error,
    )


def _rhythm(event: dict[str, Any], interval: float) -> Rhythm:
    recommended = _seconds(event.get("recommended_s"))
    return Rhythm(
        level=event["level"],
        interval=round(interval * NS),
        recommended=None if recommended is None else round(recommended * NS),
        wasted_percent=_seconds(event.get("wasted_percent")),
        recommended_percent=_seconds(event.get("recommended_percent")),
        failures_per_hour=_seconds(event.get("failures_per_hour")),
        failures_low=_seconds(event.get("failures_low")),
        failures_high=_seconds(event.get("failures_high")),
    )


def _seconds(value: Any) -> float | None:
    """A number that can be one; journals may be written by others."""
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e9
    return float(value) if good else None


def _ns(value: Any) -> int:
    return round((_seconds(value) or 0.0) * NS)
