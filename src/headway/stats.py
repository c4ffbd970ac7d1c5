"""Percentiles, confidence intervals and axis ticks, each defined once; standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The percentile of `share` (0 to 1), with linear interpolation.

    Equal to NumPy's default, `statistics.quantiles(method="inclusive")` and `quantile_cont`.
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    if place == below:
        return ordered[below]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def student_t(freedom: int, share: float = 0.95) -> float:
    """Two-sided quantile of Student's t, for a confidence interval of a mean."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < share else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    cosine, total, term = math.cos(angle), 0.0, 1.0
    if freedom % 2:
        term = cosine
        for number in range(3, freedom + 1, 2):
            total += term
            term *= cosine * cosine * (number - 1) / number
        return 2 / math.pi * (angle + math.sin(angle) * total)
    for number in range(2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (number - 1) / number
    return math.sin(angle) * total


def axis_ticks(maximum: float) -> list[float]:
    """Ticks from 0 to `maximum` at multiples of 1, 2 or 5 times a power of ten: four to eight."""
    step = 1e-9
    while maximum / step > 8:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if maximum / step <= 8:
                break
    return [round(step * number, 9) for number in range(int(maximum / step + 1e-9) + 1)]
