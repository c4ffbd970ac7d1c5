"""Checkpoint interval against wasted time: Figure 7 of Meta's article, for any job."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.checkpoint.interval import daly, renewal, wasted, young
from headway.plan.case import JobSpec

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
