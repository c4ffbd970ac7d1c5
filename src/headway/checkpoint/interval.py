"""Checkpoint intervals: the share of time lost at an interval, the optimum, and failure rates.

All times are in seconds. `cost` is the full cost of a save to the training: the call, the wait, and
the slowdown of the steps while it was written. `mtbf` is the mean time between failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.errors import UsageError

HALVINGS = 200  # bisections of the bracket around the optimum; fewer reach the last bit


@dataclass(frozen=True, kw_only=True)
class BestInterval:
    """An interval, what determined it ("law", "durable" or "bandwidth"), and the share it loses."""

    interval: float
    bound: str
    wasted: float


def young(cost: float, mtbf: float) -> float:
    """Young's interval, the minimum of `interval / 2 / mtbf + cost / interval`."""
    _check(cost=cost, mtbf=mtbf)
    return math.sqrt(2 * cost * mtbf) if cost else 0.0


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher-order interval: training between two saves, without the saves themselves."""
    _check(cost=cost, mtbf=mtbf)
    if cost >= 2 * mtbf or math.isinf(mtbf):
        return mtbf if cost else 0.0
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def wasted(
    interval: float, *, cost: float, mtbf: float, durable: float = 0.0, recover: float = 0.0
) -> float:
    """The share of loop time that is lost, to first order.

    A failure loses half an interval, and what was trained before the last save was durable;
    `recover` is the additional time lost. With frequent failures the share exceeds 1.
    """
    _check(cost=cost, mtbf=mtbf, interval=interval, durable=durable, recover=recover)
    lost = 0.0 if math.isinf(mtbf) else (interval / 2 + durable + recover) / mtbf
    return lost + _per(cost, interval)


def renewal(
    interval: float, *, cost: float, mtbf: float, durable: float = 0.0, recover: float = 0.0
) -> float:
    """The exact share that is lost with random failures; never above 1.

    A life lasts `mtbf` on average and keeps `interval` of training for each save that became
    durable: the n-th one at `recover + n * (interval + cost) + durable`. Recovery, during which
    failures may happen as well, and a late durable save have the same effect, and neither moves the
    optimum.
    """
    _check(cost=cost, mtbf=mtbf, interval=interval, durable=durable, recover=recover)
    if math.isinf(mtbf):
        return _per(cost, interval + cost)
    period = interval + cost
    efficiency = interval / period if period else 1.0
    lives = period / mtbf
    efficiency *= lives / math.expm1(lives) if 0 < lives < 700 else float(not lives)
    return 1 - efficiency * math.exp(-(recover + durable) / mtbf)


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
    """The interval that loses least; `exact` uses the renewal form instead of the first order.

    It is never shorter than a save takes to become durable, nor than `size` bytes take at
    `bandwidth` bytes per second: the next save would have to wait for this one.
    """
    _check(cost=cost, mtbf=mtbf, durable=durable, recover=recover, size=size)
    if not bandwidth > 0:
        raise UsageError(
            f"bandwidth must be above 0 bytes per second, not {bandwidth!r}",
            code="value-out-of-range",
            name="bandwidth",
        )
    optimum = _renewal_optimum(cost, mtbf) if exact else young(cost, mtbf)
    # Both forms decrease up to their optimum and increase after it: a bound above it is the best
    # value.
    candidates = {"law": optimum, "durable": durable, "bandwidth": size / bandwidth}
    bound = max(candidates, key=lambda name: candidates[name])
    share = (renewal if exact else wasted)(
        candidates[bound], cost=cost, mtbf=mtbf, durable=durable, recover=recover
    )
    return BestInterval(interval=candidates[bound], bound=bound, wasted=share)


def _renewal_optimum(cost: float, mtbf: float) -> float:
    """The zero of the slope of the renewal form: x = 1 - exp(-x - cost), in units of `mtbf`."""
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
            f"mtbf, the mean time between failures, must be above 0, not {mtbf!r}",
            code="value-out-of-range",
            name="mtbf",
        )
    for name, value in times.items():
        if not value >= 0 or (math.isinf(value) and name != "interval"):
            raise UsageError(
                f"{name} must be 0 or more and finite, not {value!r}",
                code="value-out-of-range",
                name=name,
            )


_MAX_TERMS = 100_000  # of a convergent series: some square roots of the shape
_TOLERANCE = 1e-12  # relative


@dataclass(frozen=True)
class FailureRate:
    """Failures per hour as a gamma distribution: `shape` failures observed in `hours` hours.

    A prior of (2, 48) has the weight of two days of this job with two failures.
    """

    shape: float
    hours: float

    def __post_init__(self) -> None:
        if not (0 < self.shape < math.inf and 0 <= self.hours < math.inf):
            raise UsageError(
                f"a failure rate needs a shape above 0 and hours of at least 0, "
                f"not {self.shape!r} and {self.hours!r}",
                code="failure-rate-invalid",
            )

    @property
    def known(self) -> bool:
        """Whether any hour was observed; otherwise any rate is possible."""
        return self.hours > 0

    @property
    def mean(self) -> float:
        """Mean failures per hour."""
        return self.shape / self.hours if self.known else math.inf

    def after(self, failures: float, hours: float) -> FailureRate:
        """The distribution after observing these failures in these hours as well."""
        if not (failures >= 0 and hours >= 0):
            raise UsageError(
                f"failures and hours must be 0 or more, not {failures!r} and {hours!r}",
                code="failures-invalid",
            )
        return FailureRate(self.shape + failures, self.hours + hours)

    def quantile(self, share: float) -> float:
        """Failures per hour that are not exceeded with this probability."""
        if not 0 < share < 1:
            raise UsageError(
                f"a quantile must be between 0 and 1, not {share!r}", code="quantile-out-of-range"
            )
        if not self.known:
            return math.inf
        low, high = 0.0, self.shape
        while _gamma_cdf(self.shape, high) < share:
            low, high = high, high * 2
        while high - low > _TOLERANCE * high:
            middle = (low + high) / 2
            if _gamma_cdf(self.shape, middle) < share:
                low = middle
            else:
                high = middle
        return high / self.hours

    def credible(self, share: float = 0.95) -> tuple[float, float]:
        """The central interval that contains the rate with this probability."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)


# Jeffreys' prior: nothing is known except that it is a rate.
UNKNOWN_RATE = FailureRate(0.5, 0.0)


def _gamma_cdf(shape: float, x: float) -> float:
    """The regularized lower incomplete gamma function."""
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    return (
        scale * _gamma_series(shape, x) if x < shape + 1 else 1 - scale * _gamma_fraction(shape, x)
    )


def _gamma_series(shape: float, x: float) -> float:
    term = total = 1 / shape
    for number in range(1, _MAX_TERMS):
        term *= x / (shape + number)
        total += term
        if term < total * 1e-16:
            break
    return total


def _gamma_fraction(shape: float, x: float) -> float:
    """Lentz's continued fraction of the upper function, which converges above the mode."""
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    fraction = d
    for number in range(1, _MAX_TERMS):
        a = -number * (number - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        fraction *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return fraction
