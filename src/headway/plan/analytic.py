"""The expected wall time in closed form, and wasted time by checkpoint interval.

A stretch of training keeps the share given by `headway.checkpoint.interval.renewal`, for failures
at random; the last stretch ends the job and has no save. The curve is Figure 7 of Meta's article,
for any job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.checkpoint.interval import daly, renewal, wasted, young
from headway.plan.job import JobSpec, Shares

MIN_KEPT_SHARE = 1e-12  # of a share that is kept: below, a job never ends


def expected(case: JobSpec) -> Shares:
    """Exact but for a save that is durable late, which counts in the long run only."""
    start = _first_start(case)
    every = case.every
    saved = (math.ceil(case.length / every) - 1) * every
    last = case.length - saved
    parts = [
        _stretches(case, saved, every, case.block, case.durable),
        _stretches(case, last, last, 0.0, 0.0),
    ]
    return Shares(
        effective=case.length,
        start=start[0],
        saves=sum(one[0] for one in parts),
        lost=sum(one[1] for one in parts),
        recover=start[1] + sum(one[2] for one in parts),
    )


def _first_start(case: JobSpec) -> tuple[float, float]:
    """The first start, and the recovery of a failure in it; then it counts as recovery."""
    if math.isinf(case.between):
        return case.first, 0.0
    failed = -math.expm1(-case.first / case.between)
    return case.between * failed, case.between * failed * math.expm1(case.again / case.between)


def _stretches(
    case: JobSpec, trained: float, interval: float, cost: float, durable: float
) -> tuple[float, float, float]:
    """Seconds of saves, of lost training and of recovery, until so much training is kept."""
    if not trained:
        return 0.0, 0.0, 0.0
    mtbf = case.between
    lost = renewal(interval, cost=cost, mtbf=mtbf, durable=durable, recover=case.again)
    wall = trained / max(1 - lost, MIN_KEPT_SHARE)
    if math.isinf(mtbf):
        return wall - trained, 0.0, 0.0
    running = wall * math.exp(-case.again / mtbf)
    # A life trains `interval`, saves for `cost`, and so on, until it ends at any moment.
    period = -math.expm1(-(interval + cost) / mtbf)
    training = running * (-math.expm1(-interval / mtbf) / period if period else 1.0)
    return running - training, max(training - trained, 0.0), wall - running


POINTS = 61
CURVE_SPAN = 12.0  # times the optimum, to either side


@dataclass(frozen=True, slots=True)
class Point:
    """What an interval loses of the loop's time, in percent; the three parts sum to the whole."""

    interval: float
    saves: float
    lost: float
    recover: float
    exact: float  # the whole by the renewal form, which never passes 100

    @property
    def wasted(self) -> float:
        """To the first order."""
        return self.saves + self.lost + self.recover


@dataclass(frozen=True, slots=True)
class Formula:
    """An interval, by whom, and what it loses."""

    name: str
    at: Point


def point(case: JobSpec, interval: float) -> Point:
    """One interval of the curve."""
    total = wasted(interval, **_interval_arguments(case))
    saves = wasted(interval, cost=case.block, mtbf=math.inf)
    recover = 0.0 if math.isinf(case.between) else case.again / case.between
    lost = max(total - saves - recover, 0.0)
    exact = renewal(interval, **_interval_arguments(case))
    return Point(interval, 100 * saves, 100 * lost, 100 * recover, 100 * exact)


def curve(case: JobSpec) -> tuple[Point, ...]:
    """Evenly spaced on a logarithmic scale, the optimum in their middle."""
    middle = case.best().interval
    if not 0 < middle < math.inf:
        return ()
    steps = [2 * number / (POINTS - 1) - 1 for number in range(POINTS)]
    return tuple(point(case, middle * CURVE_SPAN**step) for step in steps)


def formulas(case: JobSpec) -> tuple[Formula, ...]:
    """What each formula says; all but the last know of the saves' cost and of failures only."""
    if not case.block or math.isinf(case.between):
        return ()
    found = {
        "Young": young(case.block, case.between),
        "Daly": daly(case.block, case.between),
        "exact": case.best(exact=True).interval,
    }
    return tuple(Formula(name, point(case, interval)) for name, interval in found.items())


def _interval_arguments(case: JobSpec) -> dict[str, float]:
    return {
        "cost": case.block,
        "mtbf": case.between,
        "durable": case.durable,
        "recover": case.again,
    }
