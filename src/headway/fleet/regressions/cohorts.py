"""Jobs of one slice as a series, compared within cohorts of similar duration.

A job's value is its share of wall time in each bucket, in points (0 to 100), weighted by its
accelerator-hours. Short jobs spend a larger share on starting than long ones, and the most recent
jobs are known only up to now, so each job is compared with jobs of about the same duration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DURATION_BINS = 8  # bins of wall time, of equal weight
MAX_WEIGHT_SHARE = 0.005  # maximum weight of one job in a test, as a share of its slice
MIN_SPREAD = 0.05  # as a share of the mean spread of all cohorts


@dataclass(frozen=True)
class Series:
    """The jobs of one slice; `seconds` has a row per job and a column per bucket."""

    slice: tuple[str, ...]
    buckets: tuple[str, ...]
    start: Floats  # seconds since the epoch
    accelerators: Floats
    seconds: Floats
    running: NDArray[np.bool_]
    fields: dict[str, NDArray[Any]]

    @property
    def wall(self) -> Floats:
        """Wall seconds of each job."""
        return np.asarray(self.seconds.sum(axis=1))

    @property
    def hours(self) -> Floats:
        """Accelerator-hours of each job."""
        return self.wall * self.accelerators / 3600

    @property
    def points(self) -> Floats:
        """Share of wall time of each job by bucket, in points."""
        wall = self.wall[:, None]
        return np.divide(100 * self.seconds, wall, out=np.zeros_like(self.seconds), where=wall > 0)

    def where(self, index: NDArray[Any]) -> Series:
        """The jobs selected by a mask or an index."""
        return replace(
            self,
            start=self.start[index],
            accelerators=self.accelerators[index],
            seconds=self.seconds[index],
            running=self.running[index],
            fields={name: values[index] for name, values in self.fields.items()},
        )


def cap_weights(weights: Floats, max_share: float = MAX_WEIGHT_SHARE) -> Floats:
    """Cap the weights at a share of their sum, so that no single job looks like a trend."""
    if weights.size * max_share <= 1:
        return np.ones_like(weights)
    ordered = np.sort(weights)[::-1]
    # avoids cancellation when one weight dominates
    below = np.append(np.cumsum(ordered[:0:-1])[::-1], 0.0)
    # With the k heaviest at the cap c: c = max_share * (rest + k * c).
    k = np.arange(1, weights.size + 1)
    remainder = 1 - max_share * k
    cap = np.divide(
        max_share * below, remainder, out=np.full(weights.size, np.inf), where=remainder > 0
    )
    if ordered[0] <= max_share * weights.sum():
        return weights
    next_weights = np.append(ordered[1:], 0.0)
    fits = np.flatnonzero((cap >= next_weights) & np.isfinite(cap))
    return np.minimum(weights, cap[fits[0]]) if fits.size else np.ones_like(weights)


def duration_bins(wall: Floats, weights: Floats, classes: int = DURATION_BINS) -> Ints:
    """The bin of each job's wall time; all bins have about the same weight."""
    # Jobs of equal wall time share a bin: otherwise bins would depend on the order in time. A wall
    # time is a sum over buckets, so differences below a millisecond are rounding errors.
    levels, level = np.unique(wall.round(3), return_inverse=True)
    weight_of_level = np.bincount(level, weights, levels.size)
    middle = np.cumsum(weight_of_level) - weight_of_level / 2
    bins = np.minimum(middle / weights.sum() * classes, classes - 1).astype(np.int64)
    return np.asarray(bins[level])


def standardize_within_cohort(values: Floats, weights: Floats, classes: Ints) -> Floats:
    """Each value minus the weighted mean of its cohort, in units of the cohort's mean deviation."""
    count = int(classes.max()) + 1 if classes.size else 0
    total = np.bincount(classes, weights, count).astype(np.float64)
    result = np.empty_like(values)
    for column in range(values.shape[1]):
        mean = _means(values[:, column], weights, classes, total)
        deviation = np.asarray(values[:, column] - mean[classes], dtype=np.float64)
        spread = _means(np.abs(deviation), weights, classes, total)
        # A cohort in which a bucket hardly varies must not dominate the others.
        floor = MIN_SPREAD * float(np.average(spread, weights=total)) if count else 0.0
        units = np.maximum(spread, floor)[classes]
        result[:, column] = np.divide(
            deviation, units, out=np.zeros_like(deviation), where=units > 0
        )
    return result


def _means(values: Floats, weights: Floats, classes: Ints, total: Floats) -> Floats:
    sums = np.bincount(classes, weights * values, total.size)
    return np.divide(sums, total, out=np.zeros_like(total), where=total > 0)
