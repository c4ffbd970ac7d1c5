"""What saves cost and how often to save.

Outcomes as a Checkpointer records them (headway/checkpoint/schedule.py), saves of `--async-save`,
and the recommended interval, which is one for all parts of Headway.
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
    """Each save of all ranks, in the order in which its end was known."""
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
    """Of each level what was said last, by the lowest rank that says it: rank 0's counts."""
    by_level = {}
    for attempt in attempts:
        for rank in sorted(attempt.ranks, key=lambda rank: -rank.rank):
            for event in _events(rank, "checkpoint"):
                if (interval := _seconds(event.get("interval_s"))) is not None:
                    by_level[event["level"]] = _save_interval(event, interval)
    return tuple(by_level[level] for level in LEVELS if level in by_level)


def resume_level(attempt: AttemptRecord) -> str | None:
    """Which level the attempt went on from."""
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
    """Of two ranks: it is there when the last one has it, and failed if one has."""
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
    """A number that can be one; journals may be written by others."""
    good = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e9
    return float(value) if good else None


def _ns(value: Any) -> int:
    return round((_seconds(value) or 0.0) * NS)


def count_saves(checkpoints: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """How many saves (files of one step are one), and the mean time between two of an attempt."""
    saves = merge_files(checkpoints)
    gaps = [
        after.at - before.at for before, after in pairwise(saves) if before.attempt == after.attempt
    ]
    return len(saves), sum(gaps) // len(gaps) if gaps else None


def async_saves(attempts: Sequence[AttemptRecord]) -> AsyncSave | None:
    """Over all ranks and attempts; None where nothing was saved so."""
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
# With none seen in T, the rate is below 3 / T with a probability of 95 %.
NONE_SEEN = 3.0


@dataclass(frozen=True, kw_only=True)
class IntervalInputs:
    """What the interval follows from; seconds, and the hours in which the job could fail."""

    cost: float  # of a save to the training, on average
    durable: float  # from the end of its call until it could be restored, on average
    slowest: float  # the same of the slowest save
    failures: int  # those after which a job is started again
    hours: float

    @property
    def rate(self) -> FailureRate:
        """Per hour, with how sure that is."""
        return UNKNOWN_RATE.after(self.failures, self.hours)

    @property
    def per_hour(self) -> float:
        """Failures; where none was seen, the number that they are below."""
        return self.rate.mean if self.failures else NONE_SEEN / self.hours

    def best(self, per_hour: float | None = None) -> BestInterval:
        """The interval that loses least; with no failure seen, it is longer than that."""
        mtbf = HOUR_S / (self.per_hour if per_hour is None else per_hour)
        return best(cost=self.cost, mtbf=mtbf, durable=self.slowest)


def interval_inputs(
    saved: Sequence[CheckpointOutcome],
    checkpoints: Sequence[Checkpoint],
    failures: Sequence[Failure],
    wall: int,
) -> IntervalInputs | None:
    """None where no save was seen. What a Checkpointer tells goes before what was seen of it."""
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
    """The same of a ledger."""
    return interval_inputs(ledger.outcomes, ledger.checkpoints, ledger.failures, ledger.wall)


def recommended_interval(
    saved: Sequence[CheckpointOutcome],
    checkpoints: Sequence[Checkpoint],
    failures: Sequence[Failure],
    wall: int,
) -> int | None:
    """In ns; None where no failure or no cost of a save was seen."""
    inputs = interval_inputs(saved, checkpoints, failures, wall)
    if inputs is None or not inputs.failures or not inputs.cost:
        return None
    return round(inputs.best().interval * NS)


def count_restartable(failures: Sequence[Failure]) -> int:
    """Failures after which a job is started again: the others come from the job itself."""
    return sum(failure.retry != "no" for failure in failures)


def blocked_each(ledger: Ledger) -> int | None:
    """What one save to disk blocks on average, in ns."""
    times = [
        outcome.blocked
        for outcome in ledger.outcomes
        if outcome.level == "disk" and not outcome.error
    ]
    times = times or [save.blocked for save in merge_files(ledger.checkpoints)]
    return sum(times) // len(times) if times else None
