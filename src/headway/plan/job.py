"""The planned job and the parts of its wall time. All times are in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headway.checkpoint.interval import BestInterval, best
from headway.errors import UsageError

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job on `nodes` nodes that needs `length` seconds of training."""

    nodes: int
    mtbf: float  # of one node; infinite: no failures
    length: float
    interval: float | None = None  # between two saves; None: the best interval
    block: float = 0.0  # training time that one save costs
    durable: float = 0.0  # from the end of the save until it can be restored
    start: float = 0.0  # Time to Start, without compilation
    recover: float = 0.0  # Time to Recover, without compilation and the wait for machines
    requeue: float = 0.0  # wait for machines after each failure
    compile: float = 0.0  # compilation in the first start
    compile_again: float = 0.0  # compilation in each start after a failure

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(
                f"a job needs 1 node or more, not {self.nodes}; see --nodes",
                code="value-out-of-range",
                field="nodes",
            )
        if not self.mtbf > 0:
            raise UsageError(
                f"the mean time between failures must be above 0, not {self.mtbf:g} s",
                code="value-out-of-range",
                field="mtbf",
            )
        if not 0 < self.length < math.inf:
            raise UsageError(
                f"the length of a job must be above 0 and finite, not {self.length:g} s",
                code="value-out-of-range",
                field="length",
            )
        if self.interval is not None and not 0 < self.interval < math.inf:
            raise UsageError(
                f"an interval must be above 0 and finite, not {self.interval:g} s",
                code="value-out-of-range",
                field="interval",
            )
        checked_above = ("nodes", "mtbf", "length", "interval")
        for name in (field.name for field in fields(self) if field.name not in checked_above):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(
                    f"{name} must be 0 or more and finite, not {value:g} s",
                    code="value-out-of-range",
                    field=name,
                )

    @property
    def job_mtbf(self) -> float:
        """Mean time between failures of the whole job: any failed node stops it."""
        return self.mtbf / self.nodes

    @property
    def failures_per_day(self) -> float:
        return DAY / self.job_mtbf

    @property
    def startup_s(self) -> float:
        """From the allocation to the first training step."""
        return self.start + self.compile

    @property
    def recovery_s(self) -> float:
        """From a failure until the job trains again."""
        return self.requeue + self.recover + self.compile_again

    def best(self, *, exact: bool = False) -> BestInterval:
        """The checkpoint interval that wastes the least time."""
        return best(
            cost=self.block,
            mtbf=self.job_mtbf,
            durable=self.durable,
            recover=self.recovery_s,
            exact=exact,
        )

    @property
    def interval_in_use(self) -> float:
        """The given or the best interval, at most the length of the job."""
        interval = self.best().interval if self.interval is None else self.interval
        if not interval:
            raise UsageError(
                "the cost of a save is unknown, so there is no best interval; "
                "give --block or --interval",
                code="interval-undefined",
            )
        return min(interval, self.length)


PARTS = ("effective", "start", "saves", "lost", "recover")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Seconds of the wall time by part."""

    effective: float  # training that was kept
    start: float  # the first start
    saves: float  # training blocked by saves
    lost: float  # trained, then rolled back
    recover: float  # from failures until the job trains again

    @property
    def wall(self) -> float:
        return self.effective + self.start + self.saves + self.lost + self.recover

    @property
    def ett_percent(self) -> float:
        return self.percent("effective")

    def percent(self, part: str) -> float:
        """One part as a percentage of the wall time."""
        seconds: float = getattr(self, part)
        return 100.0 * seconds / self.wall
