"""Find the most likely change point of a series: weighted energy distance, permutation test.

In one dimension the energy distance is twice the integral of the squared difference of the two
distribution functions (Szekely and Rizzo), so no pairs of jobs are compared: values are binned into
cells of equal weight, and each channel costs slots x cells for all moments at once.

The test permutes whole time slots with all their jobs and buckets, so that what jobs of the same
hours have in common is not evidence. Buckets differ in noise: each bucket's best split is compared
with its own permutations on a log scale, and the most extreme bucket represents the series.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.fleet.regressions.cohorts import Floats, Ints

Singles = NDArray[np.float32]
CELLS = 9


@dataclass(frozen=True)
class Deviations:
    """Contributions of the slots to the distance of the distributions: slots x channels x cells."""

    parts: Singles
    weights: Floats  # of each slot

    @classmethod
    def of(cls, values: Floats, weights: Floats, slots: Ints, count: int) -> Deviations:
        """The deviations of jobs with `values` (jobs x channels) in `count` slots of time."""
        per_slot: Floats = np.bincount(slots, weights, count).astype(np.float64)
        total = per_slot.sum()
        parts = np.zeros((count, values.shape[1], CELLS - 1), dtype=np.float32)
        for channel in range(values.shape[1]):
            cells, gaps = _cells(values[:, channel], weights)
            table = np.bincount(slots * CELLS + cells, weights, count * CELLS)
            below = table.reshape(count, CELLS).cumsum(axis=1)[:, :-1]
            shares = below.sum(axis=0) / total
            parts[:, channel] = (below - per_slot[:, None] * shares) * np.sqrt(2 * gaps / total)
        return cls(parts, per_slot)

    def distances(self, min_slots: int) -> Floats:
        """The statistic of each channel at each split, for the slots in their actual order.

        Row i is the split before slot `min_slots + i`; each side has at least `min_slots` slots.
        """
        order = np.arange(self.weights.size)[None]
        return np.array([row[0] for row in self._walk(order, min_slots)])

    def peaks(self, orders: Ints, min_slots: int) -> Floats:
        """The maximum of each channel over all splits, for each of many orders of the slots."""
        best = np.zeros((len(orders), self.parts.shape[1]), dtype=np.float32)
        for row in self._walk(orders, min_slots):
            np.maximum(best, row, out=best)
        return best.astype(np.float64)

    def _walk(self, orders: Ints, min_slots: int) -> Iterator[Singles]:
        """The statistics at each split (orders x channels), for all orders at once."""
        slots, channels, cells = self.parts.shape
        rows = self.parts.reshape(slots, channels * cells)
        before = np.cumsum(self.weights[orders], axis=1)
        total = self.weights.sum()
        balance = before * (total - before) / total**2
        factor = np.divide(1.0, balance, out=np.zeros_like(balance), where=balance > 0)
        factors = factor.astype(np.float32).T[:, :, None].copy()
        summed = np.zeros((len(orders), channels * cells), dtype=np.float32)
        by_channel = summed.reshape(-1, channels, cells)
        for slot in range(slots - min_slots):
            summed += rows[orders[:, slot]]
            if slot >= min_slots - 1:
                yield np.einsum("pck,pck->pc", by_channel, by_channel) * factors[slot]


def _cells(values: Floats, weights: Floats) -> tuple[Ints, Floats]:
    """The cell of each value, and the distances between the means of adjacent cells."""
    # Equal values share a cell: otherwise their order in time would look like a difference.
    levels, level = np.unique(values, return_inverse=True)
    weight_of_level = np.bincount(level, weights, levels.size)
    middle = np.cumsum(weight_of_level) - weight_of_level / 2
    cells = np.minimum(middle / weights.sum() * CELLS, CELLS - 1).astype(np.int64)[level]
    weight_of_cell = np.bincount(cells, weights, CELLS)
    sums = np.bincount(cells, weights * values, CELLS)
    non_empty = np.flatnonzero(weight_of_cell)
    means = np.interp(np.arange(CELLS), non_empty, sums[non_empty] / weight_of_cell[non_empty])
    return cells, np.maximum(np.diff(means), 0.0)


SHUFFLES = 1999
EARLY_STOPS = (
    (99, 0.1),
    (499, 0.03),
)  # after so many shuffles, continue only if the p-value is at most this
BATCH = 200  # shuffles per batch, so that the data fits into the processor's cache
TINY = 1e-30


@dataclass(frozen=True)
class Split:
    """The best split, before slot `at`; it is largest in `channel`, and `p` is its p-value."""

    at: int
    channel: int
    p: float
    scores: Floats  # by channel: standard deviations above the shuffled maxima


def best_split(
    deviations: Deviations, min_slots: int, seed: int, shuffles: int = SHUFFLES
) -> Split | None:
    """The best split, or None if the series is too short."""
    slots = deviations.weights.size
    if slots < 2 * min_slots or deviations.weights.sum() <= 0:
        return None
    random = np.random.default_rng(seed)
    distances = deviations.distances(min_slots)
    peaks = distances.max(axis=0)[None]
    for total, max_p in (*EARLY_STOPS, (shuffles, 1.0)):
        more = _shuffled_peaks(deviations, min_slots, random, min(total, shuffles) + 1 - len(peaks))
        peaks = np.vstack([peaks, *more])
        p, scores = _judge(peaks)
        if p > max_p:
            break
    channel = int(scores.argmax())
    return Split(int(distances[:, channel].argmax()) + min_slots, channel, p, scores)


def _shuffled_peaks(
    deviations: Deviations, min_slots: int, random: np.random.Generator, times: int
) -> list[Floats]:
    slots = np.arange(deviations.weights.size)
    peaks = []
    for begin in range(0, times, BATCH):
        orders = np.tile(slots, (min(BATCH, times - begin), 1))
        peaks.append(deviations.peaks(random.permuted(orders, axis=1), min_slots))
    return peaks


def _judge(peaks: Floats) -> tuple[float, Floats]:
    """The p-value of the first row among all rows, itself included, and its scores."""
    table = np.log(peaks + TINY)
    spread = table.std(axis=0)
    scores = np.divide(
        table - table.mean(axis=0), spread, out=np.zeros_like(table), where=spread > 1e-9
    )
    best = scores.max(axis=1)
    return float((best >= best[0]).mean()), scores[0]
