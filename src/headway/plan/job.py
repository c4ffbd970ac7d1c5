"""The planned job and the parts of its wall time. All times are in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from headway.checkpoint.interval import BestInterval, best
from headway.errors import UsageError

DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job on `nodes` nodes that has `length` seconds to train."""

    nodes: int
    mtbf: float  # of one node; infinite: nothing fails
    length: float
    interval: float | None = None  # between two saves; None: the best one
    block: float = 0.0  # what one save costs the training
    durable: float = 0.0  # until it could be restored
    start: float = 0.0  # Time to Start, without the compile
    recover: float = 0.0  # Time to Recover, without the compile and the wait for machines
    requeue: float = 0.0  # the wait for machines, after each failure
    compile: float = 0.0  # in the first start
    compile_again: float = 0.0  # in each start after a failure

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageError(
                f"a job has 1 node or more, not {self.nodes}; see --nodes",
                code="value-out-of-range",
                field="nodes",
            )
        if not self.mtbf > 0:
            raise UsageError(
                f"the mean time between failures is above 0, not {self.mtbf:g} s",
                code="value-out-of-range",
                field="mtbf",
            )
        if not 0 < self.length < math.inf:
            raise UsageError(
                f"the length of a job is above 0 and finite, not {self.length:g} s",
                code="value-out-of-range",
                field="length",
            )
        if self.interval is not None and not 0 < self.interval < math.inf:
            raise UsageError(
                f"an interval is above 0 and finite, not {self.interval:g} s",
                code="value-out-of-range",
                field="interval",
            )
        checked_above = ("nodes", "mtbf", "length", "interval")
        for name in (field.name for field in fields(self) if field.name not in checked_above):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(
                    f"{name} is 0 or more and finite, not {value:g} s",
                    code="value-out-of-range",
                    field=name,
                )

    @property
    def job_mtbf(self) -> float:
        """The mean time between failures of the whole job: any node's failure is the job's."""
        return self.mtbf / self.nodes

    @property
    def failures_per_day(self) -> float:
        """Failures of the job."""
        return DAY / self.job_mtbf

    @property
    def startup_s(self) -> float:
        """From the allocation to the first training."""
        return self.start + self.compile

    @property
    def recovery_s(self) -> float:
        """From a failure to training again."""
        return self.requeue + self.recover + self.compile_again

    def best(self, *, exact: bool = False) -> BestInterval:
        """The interval that loses least."""
        return best(
            cost=self.block,
            mtbf=self.job_mtbf,
            durable=self.durable,
            recover=self.recovery_s,
            exact=exact,
        )

    @property
    def interval_in_use(self) -> float:
        """The interval in force; never longer than the job."""
        interval = self.best().interval if self.interval is None else self.interval
        if not interval:
            raise UsageError(
                "a save of no known cost has no best interval; give --block or --interval",
                code="interval-undefined",
            )
        return min(interval, self.length)


PARTS = ("effective", "start", "saves", "lost", "recover")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Seconds of the wall time by part."""

    effective: float  # training that was kept
    start: float  # the first start
    saves: float  # training stood for a save
    lost: float  # trained, then rolled back
    recover: float  # from failures to training again

    @property
    def wall(self) -> float:
        """All of it."""
        return self.effective + self.start + self.saves + self.lost + self.recover

    @property
    def ett_percent(self) -> float:
        """Effective training as a share of the wall time."""
        return self.percent("effective")

    def percent(self, part: str) -> float:
        """A part as a share of the wall time."""
        seconds: float = getattr(self, part)
        return 100.0 * seconds / self.wall
