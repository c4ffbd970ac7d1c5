"""The expected wall time in closed form, and wasted time by checkpoint interval.

Between two saves, the share of time that is kept is given by
`headway.checkpoint.interval.renewal`, which assumes failures at random. The last interval ends the
job and has no save. The curve is Figure 7 of Meta's article, for any job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.checkpoint.interval import daly, renewal, wasted, young
from headway.plan.job import JobSpec, Shares

MIN_KEPT_SHARE = 1e-12  # with a smaller share of kept training a job never ends
POINTS = 61
CURVE_SPAN = 12.0  # the curve spans from optimum / CURVE_SPAN to optimum * CURVE_SPAN


def expected(job: JobSpec) -> Shares:
    """Exact, except for saves that become durable late: they count as in the long run."""
    first_start = _first_start(job)
    interval = job.interval_in_use
    saved_time = (math.ceil(job.length / interval) - 1) * interval
    last_stretch = job.length - saved_time
    parts = [
        _stretches(job, saved_time, interval, job.block, job.durable),
        _stretches(job, last_stretch, last_stretch, 0.0, 0.0),
    ]
    return Shares(
        effective=job.length,
        start=first_start[0],
        saves=sum(part[0] for part in parts),
        lost=sum(part[1] for part in parts),
        recover=first_start[1] + sum(part[2] for part in parts),
    )


def _first_start(job: JobSpec) -> tuple[float, float]:
    """Time of the first start, and of the recovery from failures during it."""
    if math.isinf(job.job_mtbf):
        return job.startup_s, 0.0
    failed_share = -math.expm1(-job.startup_s / job.job_mtbf)
    return job.job_mtbf * failed_share, job.job_mtbf * failed_share * math.expm1(
        job.recovery_s / job.job_mtbf
    )


def _stretches(
    job: JobSpec, training: float, interval: float, cost: float, durable: float
) -> tuple[float, float, float]:
    """Seconds of saves, lost training and recovery until so much training is kept."""
    if not training:
        return 0.0, 0.0, 0.0
    mtbf = job.job_mtbf
    lost_share = renewal(interval, cost=cost, mtbf=mtbf, durable=durable, recover=job.recovery_s)
    wall = training / max(1 - lost_share, MIN_KEPT_SHARE)
    if math.isinf(mtbf):
        return wall - training, 0.0, 0.0
    running = wall * math.exp(-job.recovery_s / mtbf)
    # An attempt trains for `interval`, saves for `cost`, and so on, until it ends at any time.
    period = -math.expm1(-(interval + cost) / mtbf)
    run_time = running * (-math.expm1(-interval / mtbf) / period if period else 1.0)
    return running - run_time, max(run_time - training, 0.0), wall - running


@dataclass(frozen=True, slots=True)
class Point:
    """Share of the loop's time that an interval wastes, in percent, as the sum of its parts."""

    interval: float
    saves: float
    lost: float
    recover: float
    exact: float  # total by the renewal formula, which never exceeds 100

    @property
    def wasted(self) -> float:
        """First-order approximation."""
        return self.saves + self.lost + self.recover


@dataclass(frozen=True, slots=True)
class Formula:
    """The interval that a formula recommends, and the time it wastes."""

    name: str
    point: Point


def point(job: JobSpec, interval: float) -> Point:
    total = wasted(interval, **_interval_arguments(job))
    saves = wasted(interval, cost=job.block, mtbf=math.inf)
    recover = 0.0 if math.isinf(job.job_mtbf) else job.recovery_s / job.job_mtbf
    lost = max(total - saves - recover, 0.0)
    exact = renewal(interval, **_interval_arguments(job))
    return Point(interval, 100 * saves, 100 * lost, 100 * recover, 100 * exact)


def curve(job: JobSpec) -> tuple[Point, ...]:
    """Points evenly spaced on a logarithmic scale around the optimum."""
    middle = job.best().interval
    if not 0 < middle < math.inf:
        return ()
    steps = [2 * number / (POINTS - 1) - 1 for number in range(POINTS)]
    return tuple(point(job, middle * CURVE_SPAN**step) for step in steps)


def formulas(job: JobSpec) -> tuple[Formula, ...]:
    """Young, Daly and the exact optimum; Young and Daly use only save cost and failure rate."""
    if not job.block or math.isinf(job.job_mtbf):
        return ()
    intervals = {
        "Young": young(job.block, job.job_mtbf),
        "Daly": daly(job.block, job.job_mtbf),
        "exact": job.best(exact=True).interval,
    }
    return tuple(Formula(name, point(job, interval)) for name, interval in intervals.items())


def _interval_arguments(job: JobSpec) -> dict[str, float]:
    return {
        "cost": job.block,
        "mtbf": job.job_mtbf,
        "durable": job.durable,
        "recover": job.recovery_s,
    }
