"""The closed form: what a planned job takes on average if failures come at random.

A stretch of training keeps the share that `headway.checkpoint.interval.renewal` says. The last
stretch ends the job, and so has no save.
"""

from __future__ import annotations

import math

from headway.checkpoint.interval import renewal
from headway.plan.case import JobSpec
from headway.plan.shares import Shares

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
