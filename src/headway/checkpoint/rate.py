"""How often a job fails: what other jobs taught, what this one has shown, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.errors import UsageError

_MAX_TERMS = 100_000  # of a series that ends by itself: some square roots of the shape
_TOLERANCE = 1e-12  # relative


@dataclass(frozen=True)
class FailureRate:
    """Failures per hour as a gamma distribution: `shape` failures were seen in `hours` hours.

    As if: a prior of (2, 48) weighs as much as two days of this job with two failures in them.
    """

    shape: float
    hours: float

    def __post_init__(self) -> None:
        if not (0 < self.shape < math.inf and 0 <= self.hours < math.inf):
            raise UsageError(
                f"a failure rate needs a shape above 0 and hours of 0 or more, "
                f"not {self.shape!r} and {self.hours!r}",
                code="failure-rate-invalid",
            )

    @property
    def known(self) -> bool:
        """Whether it says anything: without an hour seen, any rate may be."""
        return self.hours > 0

    @property
    def mean(self) -> float:
        """Failures per hour, on average."""
        return self.shape / self.hours if self.known else math.inf

    def after(self, failures: float, hours: float) -> FailureRate:
        """Once these failures were seen in these hours as well."""
        if not (failures >= 0 and hours >= 0):
            raise UsageError(
                f"{failures!r} failures in {hours!r} hours cannot be", code="failures-invalid"
            )
        return FailureRate(self.shape + failures, self.hours + hours)

    def quantile(self, share: float) -> float:
        """Failures per hour that are not exceeded with this probability."""
        if not 0 < share < 1:
            raise UsageError(
                f"a quantile is between 0 and 1, not {share!r}", code="quantile-out-of-range"
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
        """The interval that holds it with this probability, the same chance left on either side."""
        return self.quantile((1 - share) / 2), self.quantile((1 + share) / 2)


# Jeffreys' prior: nothing is known but that it is a rate.
UNKNOWN_RATE = FailureRate(0.5, 0.0)


def _gamma_cdf(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function."""
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
    """Lentz's continued fraction of the upper function, which converges beyond the mode."""
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    found = d
    for number in range(1, _MAX_TERMS):
        a = -number * (number - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        found *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return found
