"""The cost of saves, and how often to save.

Outcomes that a Checkpointer recorded (headway/checkpoint/schedule.py), saves of `--async-save`, and
the recommended interval, which all parts of Headway share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headway.checkpoint.interval import UNKNOWN_RATE, BestInterval, FailureRate, best
from headway.ledger.model import (
    AsyncSave,
    Checkpoint,
    CheckpointOutcome,
    Failure,
    Ledger,
    SaveInterval,
)
from headway.ledger.record import AttemptRecord, RankRecord
from headway.ledger.resume import merge_files
from headway.units import NS

LEVELS = ("memory", "disk")


def checkpoint_outcomes(
    attempts: Sequence[AttemptRecord], zero: int
) -> tuple[CheckpointOutcome, ...]:
    """Return each save, merged over the ranks, in the order of its end."""
    outcomes: dict[tuple[int, int, str], CheckpointOutcome] = {}
    for index, attempt in enumerate(attempts):
        for rank in attempt.ranks:
            for event in _events(rank, "checkpoint"):
                outcome = _outcome(index, event, event["t"] + rank.shift - zero)
                key = (outcome.attempt, outcome.step, outcome.level)
                outcomes[key] = _merge_ranks(outcomes[key], outcome) if key in outcomes else outcome
    return tuple(
        sorted(outcomes.values(), key=lambda outcome: (outcome.at, outcome.step, outcome.level))
    )


def save_intervals(attempts: Sequence[AttemptRecord]) -> tuple[SaveInterval, ...]:
    """Return the last interval of each level, by the lowest rank that recorded it."""
    by_level = {}
    for attempt in attempts:
        for rank in sorted(attempt.ranks, key=lambda rank: -rank.rank):
            for event in _events(rank, "checkpoint"):
                if (interval := _seconds(event.get("interval_s"))) is not None:
                    by_level[event["level"]] = _save_interval(event, interval)
    return tuple(by_level[level] for level in LEVELS if level in by_level)


def resume_level(attempt: AttemptRecord) -> str | None:
    """Return the level that the attempt resumed from."""
    for rank in sorted(attempt.ranks, key=lambda rank: rank.rank):
        for event in _events(rank, "restored"):
            first = rank.first_step_end
            if first is None or event["t"] + rank.shift < first:
                return str(event["level"])
    return None


def _events(rank: RankRecord, name: str) -> Iterator[dict[str, Any]]:
    for event in rank.journal.named(name):
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
        step_slowdown=_ns(event.get("slower_s")),
        durable=_ns(event.get("durable_s")),
        size=size if type(size) is int and size > 0 else 0,
        error=str(event.get("error") or ""),
    )


def _merge_ranks(first: CheckpointOutcome, second: CheckpointOutcome) -> CheckpointOutcome:
    """Merge the outcomes of two ranks: complete when both are, failed if either failed."""
    return CheckpointOutcome(
        attempt=first.attempt,
        step=first.step,
        at=max(first.at, second.at),
        level=first.level,
        blocked=max(first.blocked, second.blocked),
        step_slowdown=max(first.step_slowdown, second.step_slowdown),
        durable=max(first.durable, second.durable),
        size=first.size + second.size,
        error=first.error or second.error,
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
    """Return a plausible duration; other programs may write journals."""
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e9
    return float(value) if good else None


def _ns(value: Any) -> int:
    return round((_seconds(value) or 0.0) * NS)


def count_saves(checkpoints: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """Return the number of saves, and the mean time between two saves of an attempt.

    Files of the same step form a single save.
    """
    saves = merge_files(checkpoints)
    gaps = [
        after.at - before.at for before, after in pairwise(saves) if before.attempt == after.attempt
    ]
    return len(saves), sum(gaps) // len(gaps) if gaps else None


def async_saves(attempts: Sequence[AttemptRecord]) -> AsyncSave | None:
    """Sum the saves of `--async-save` over all ranks and attempts; None if there are none."""
    events = [e for d in attempts for rank in d.ranks for e in rank.journal.named("behind")]
    if not events:
        return None
    written = [event for event in events if "bytes" in event]
    return AsyncSave(
        saves=sum("error" not in event for event in written),
        blocked=sum(_number(event.get("blocked")) for event in written),
        write=sum(map(_duration, written)),
        wait=sum(_duration(event) for event in events if "waited" in event),
        failed=sum("error" in event for event in written),
        sync_fallbacks=Counter(str(event["why"])[:200] for event in events if "why" in event),
    )


def _duration(event: dict[str, Any]) -> int:
    return max(_number(event.get("end")) - _number(event.get("t")), 0)


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


HOUR_S = 3600.0
# Without a failure in time T, the rate is below 3 / T with a probability of 95 %.
NONE_SEEN = 3.0


@dataclass(frozen=True, kw_only=True)
class IntervalInputs:
    """The inputs of the recommended interval; times in seconds unless noted."""

    cost: float  # mean cost of a save to the training
    durable: float  # mean time from the end of the call until the save could be restored
    slowest: float  # the same for the slowest save
    failures: int  # only those after which the job is restarted
    hours: float  # in which the job could fail

    @property
    def rate(self) -> FailureRate:
        """Failures per hour, with their uncertainty."""
        return UNKNOWN_RATE.after(self.failures, self.hours)

    @property
    def per_hour(self) -> float:
        """Failures per hour; an upper bound if there was no failure."""
        return self.rate.mean if self.failures else NONE_SEEN / self.hours

    def best(self, per_hour: float | None = None) -> BestInterval:
        """Return the interval that loses least; without a failure, the true optimum is longer."""
        mtbf = HOUR_S / (self.per_hour if per_hour is None else per_hour)
        return best(cost=self.cost, mtbf=mtbf, durable=self.slowest)


def interval_inputs(
    saved: Sequence[CheckpointOutcome],
    checkpoints: Sequence[Checkpoint],
    failures: Sequence[Failure],
    wall: int,
) -> IntervalInputs | None:
    """Return None without a save. Outcomes of a Checkpointer take precedence over its spans."""
    to_disk = [outcome for outcome in saved if outcome.level == "disk" and not outcome.error]
    files = merge_files(checkpoints)
    if not wall or not (to_disk or files):
        return None
    costs = [s.blocked + s.step_slowdown for s in to_disk] or [s.blocked for s in files]
    late = [max(s.durable - s.blocked, 0) for s in to_disk] or [
        max((s.written or 0) - s.blocked, 0) for s in files
    ]
    return IntervalInputs(
        cost=sum(costs) / len(costs) / NS,
        durable=sum(late) / len(late) / NS,
        slowest=max(late) / NS,
        failures=count_restartable(failures),
        hours=wall / NS / HOUR_S,
    )


def ledger_interval_inputs(ledger: Ledger) -> IntervalInputs | None:
    """Return the `interval_inputs` of a ledger."""
    return interval_inputs(ledger.outcomes, ledger.checkpoints, ledger.failures, ledger.wall)


def recommended_interval(
    saved: Sequence[CheckpointOutcome],
    checkpoints: Sequence[Checkpoint],
    failures: Sequence[Failure],
    wall: int,
) -> int | None:
    """Return the interval in ns; None without a failure or without a cost of saves."""
    inputs = interval_inputs(saved, checkpoints, failures, wall)
    if inputs is None or not inputs.failures or not inputs.cost:
        return None
    return round(inputs.best().interval * NS)


def count_restartable(failures: Sequence[Failure]) -> int:
    """Count the failures after which a job is restarted; the job itself causes the others."""
    return sum(failure.retry != "no" for failure in failures)


def blocked_each(ledger: Ledger) -> int | None:
    """Return the mean time that a save to disk blocks the training, in ns."""
    times = [
        outcome.blocked
        for outcome in ledger.outcomes
        if outcome.level == "disk" and not outcome.error
    ]
    times = times or [save.blocked for save in merge_files(ledger.checkpoints)]
    return sum(times) // len(times) if times else None
