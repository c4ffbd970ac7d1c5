"""What Checkpointers tell of their saves: see headway/checkpoint/record.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from headway.ledger.attempts import AttemptRecord
from headway.ledger.life import RankRecord
from headway.ledger.model import NS, CheckpointOutcome, SaveInterval

LEVELS = ("memory", "disk")


def checkpoint_outcomes(
    drafts: Sequence[AttemptRecord], zero: int
) -> tuple[CheckpointOutcome, ...]:
    """Each save of all ranks, in the order in which its end was known."""
    found: dict[tuple[int, int, str], CheckpointOutcome] = {}
    for index, draft in enumerate(drafts):
        for life in draft.lives:
            for event in _events(life, "checkpoint"):
                one = _outcome(index, event, event["t"] + life.shift - zero)
                key = (one.attempt, one.step, one.level)
                found[key] = _merge_ranks(found[key], one) if key in found else one
    return tuple(sorted(found.values(), key=lambda one: (one.at, one.step, one.level)))


def save_intervals(drafts: Sequence[AttemptRecord]) -> tuple[SaveInterval, ...]:
    """Of each level what was said last, by the lowest rank that says it: rank 0's counts."""
    found = {}
    for draft in drafts:
        for life in sorted(draft.lives, key=lambda life: -life.rank):
            for event in _events(life, "checkpoint"):
                if (interval := _seconds(event.get("interval_s"))) is not None:
                    found[event["level"]] = _save_interval(event, interval)
    return tuple(found[level] for level in LEVELS if level in found)


def resume_level(draft: AttemptRecord) -> str | None:
    """Which level the attempt went on from."""
    for life in sorted(draft.lives, key=lambda life: life.rank):
        for event in _events(life, "restored"):
            first = life.first_step_end
            if first is None or event["t"] + life.shift < first:
                return str(event["level"])
    return None


def _events(life: RankRecord, name: str) -> Iterator[dict[str, Any]]:
    for event in life.journal.named(name):
        if event.get("level") in LEVELS and type(event.get("step")) is int:
            yield event


def _outcome(attempt: int, event: dict[str, Any], at: int) -> CheckpointOutcome:
    size = event.get("bytes")
    return CheckpointOutcome(
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


def _merge_ranks(one: CheckpointOutcome, other: CheckpointOutcome) -> CheckpointOutcome:
    """Of two ranks: it is there when the last one has it, and failed if one has."""
    return CheckpointOutcome(
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


def _save_interval(event: dict[str, Any], interval: float) -> SaveInterval:
    recommended = _seconds(event.get("recommended_s"))
    return SaveInterval(
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
