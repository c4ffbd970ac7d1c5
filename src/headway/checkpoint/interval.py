"""How long to train between two saves: what is lost at an interval, and the one that loses least.

All times are in seconds. `cost` is the true cost of a save to training: the call, the wait, and
what the steps took longer while it drained. `mtbf` is the mean time between failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.errors import UsageError

HALVINGS = 200  # of the bracket around the optimum; fewer reach the last bit


@dataclass(frozen=True, kw_only=True)
class BestInterval:
    """An interval, what set it ("law", "durable" or "bandwidth"), and the share that it loses."""

    interval: float
    bound: str
    wasted: float


def young(cost: float, mtbf: float) -> float:
    """Young's interval: the least of `interval / 2 / mtbf + cost / interval`."""
    _check(cost=cost, mtbf=mtbf)
    return math.sqrt(2 * cost * mtbf) if cost else 0.0


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher-order interval: training between two saves, the saves themselves left out."""
    _check(cost=cost, mtbf=mtbf)
    if cost >= 2 * mtbf or math.isinf(mtbf):
        return mtbf if cost else 0.0
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def wasted(
    interval: float, *, cost: float, mtbf: float, durable: float = 0.0, recover: float = 0.0
) -> float:
    """The share of loop time that is lost, to the first order.

    A failure loses half an interval, and what was trained while the last save was not durable yet;
    `recover` is what it loses besides. Where failures are frequent the share passes 1.
    """
    _check(cost=cost, mtbf=mtbf, interval=interval, durable=durable, recover=recover)
    lost = 0.0 if math.isinf(mtbf) else (interval / 2 + durable + recover) / mtbf
    return lost + _per(cost, interval)


def renewal(
    interval: float, *, cost: float, mtbf: float, durable: float = 0.0, recover: float = 0.0
) -> float:
    """The share that is lost if failures come at random, exactly; never above 1.

    A life lasts `mtbf` on average and keeps `interval` of training for each save that became
    durable: the n-th one at `recover + n * (interval + cost) + durable`. So recovery, during which
    it may fail as well, and a late durable save weigh the same, and neither moves the optimum.
    """
    _check(cost=cost, mtbf=mtbf, interval=interval, durable=durable, recover=recover)
    if math.isinf(mtbf):
        return _per(cost, interval + cost)
    period = interval + cost
    kept = interval / period if period else 1.0
    lives = period / mtbf
    kept *= lives / math.expm1(lives) if 0 < lives < 700 else float(not lives)
    return 1 - kept * math.exp(-(recover + durable) / mtbf)


def best(
    *,
    cost: float,
    mtbf: float,
    durable: float = 0.0,
    recover: float = 0.0,
    size: float = 0.0,
    bandwidth: float = math.inf,
    exact: bool = False,
) -> BestInterval:
    """The interval that loses least; `exact` takes the renewal form instead of the first order.

    Never shorter than a save takes to become durable, nor than `size` bytes take at `bandwidth`
    bytes a second: the next save would have to wait for this one.
    """
    _check(cost=cost, mtbf=mtbf, durable=durable, recover=recover, size=size)
    if not bandwidth > 0:
        raise UsageError(
            f"bandwidth is in bytes a second and above 0, not {bandwidth!r}",
            code="value-out-of-range",
            name="bandwidth",
        )
    law = _renewal_optimum(cost, mtbf) if exact else young(cost, mtbf)
    # Both forms fall up to their optimum and rise after it: a bound above it is the best there is.
    found = {"law": law, "durable": durable, "bandwidth": size / bandwidth}
    bound = max(found, key=lambda name: found[name])
    share = (renewal if exact else wasted)(
        found[bound], cost=cost, mtbf=mtbf, durable=durable, recover=recover
    )
    return BestInterval(interval=found[bound], bound=bound, wasted=share)


def _renewal_optimum(cost: float, mtbf: float) -> float:
    """Where the slope of the renewal form is 0: x = 1 - exp(-x - cost), in units of `mtbf`."""
    if not cost or math.isinf(mtbf):
        return mtbf if cost else 0.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle + math.expm1(-middle - cost / mtbf) < 0:
            low = middle
        else:
            high = middle
    return high * mtbf


def _per(cost: float, interval: float) -> float:
    if not cost:
        return 0.0
    return cost / interval if interval else math.inf


def _check(*, mtbf: float, **times: float) -> None:
    if not mtbf > 0:
        raise UsageError(
            f"mtbf is the mean time between failures and above 0, not {mtbf!r}",
            code="value-out-of-range",
            name="mtbf",
        )
    for name, value in times.items():
        if not value >= 0 or (math.isinf(value) and name != "interval"):
            raise UsageError(
                f"{name} is 0 or more and finite, not {value!r}",
                code="value-out-of-range",
                name=name,
            )
