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
from headway.ledger.resume import merge_files as gathered
from headway.units import NS

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


def count_saves(checkpoints: Sequence[Checkpoint]) -> tuple[int, int | None]:
    """How many saves (files of one step are one), and the mean time between two of an attempt."""
    made = merge_files(checkpoints)
    gaps = [
        after.at - before.at for before, after in pairwise(made) if before.attempt == after.attempt
    ]
    return len(made), sum(gaps) // len(gaps) if gaps else None


def async_saves(drafts: Sequence[AttemptRecord]) -> AsyncSave | None:
    """Over all ranks and attempts; None where nothing was saved so."""
    events = [e for d in drafts for life in d.lives for e in life.journal.named("behind")]
    if not events:
        return None
    written = [event for event in events if "bytes" in event]
    return AsyncSave(
        saves=sum("error" not in event for event in written),
        blocked=sum(_number(event.get("blocked")) for event in written),
        written=sum(map(_duration, written)),
        waited=sum(_duration(event) for event in events if "waited" in event),
        failed=sum("error" in event for event in written),
        plain=Counter(str(event["why"])[:200] for event in events if "why" in event),
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
    to_disk = [one for one in saved if one.level == "disk" and not one.error]
    seen = gathered(checkpoints)
    if not wall or not (to_disk or seen):
        return None
    costs = [one.blocked + one.slower for one in to_disk] or [one.blocked for one in seen]
    late = [max(one.durable - one.blocked, 0) for one in to_disk] or [
        max((one.written or 0) - one.blocked, 0) for one in seen
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
    return interval_inputs(ledger.saved, ledger.checkpoints, ledger.failures, ledger.wall)


def recommended_interval(
    saved: Sequence[CheckpointOutcome],
    checkpoints: Sequence[Checkpoint],
    failures: Sequence[Failure],
    wall: int,
) -> int | None:
    """In ns; None where no failure or no cost of a save was seen."""
    known = interval_inputs(saved, checkpoints, failures, wall)
    if known is None or not known.failures or not known.cost:
        return None
    return round(known.best().interval * NS)


def count_restartable(failures: Sequence[Failure]) -> int:
    """Failures after which a job is started again: the others come from the job itself."""
    return sum(failure.retry != "no" for failure in failures)


def blocked_each(ledger: Ledger) -> int | None:
    """What one save to disk blocks on average, in ns."""
    times = [one.blocked for one in ledger.saved if one.level == "disk" and not one.error]
    times = times or [one.blocked for one in gathered(ledger.checkpoints)]
    return sum(times) // len(times) if times else None
