"""How often a run should save, by what its saves and its failures were: one answer for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.checkpoint.interval import BestInterval, best
from headway.checkpoint.rate import UNKNOWN_RATE, FailureRate
from headway.ledger.model import NS, Checkpoint, CheckpointOutcome, Failure, Ledger
from headway.ledger.saves import merge_files as gathered

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
