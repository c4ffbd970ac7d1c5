"""A change of a weighted mean, split exactly: cells that changed, and cells that grew or shrank.

Cells may be teams, models, lengths of jobs or values of a recorded field. With the share `u` of the
weight and the mean `x` of each cell, before (0) and after (1):

    x1 - x0 = sum((u1 - u0) * ((x0 + x1) / 2 - mid))  +  sum((x1 - x0) * (u0 + u1) / 2)
                    mix: cells grew and shrank            within: cells themselves changed

`mid`, the mean of all, takes nothing away from the sum; it makes a cell that grew count only for
what it is above or below the rest. A cell that is missing on one side has not changed: it is mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]  # floats, or exact fractions as objects


@dataclass(frozen=True)
class Decomposition:
    """What each cell adds to the change: a row per cell, a column per bucket."""

    mix: Values
    within: Values

    @property
    def total(self) -> Values:
        """The change of each column; the sum of all parts."""
        return np.asarray(self.mix.sum(axis=0) + self.within.sum(axis=0))


def decompose(weight0: Values, sum0: Values, weight1: Values, sum1: Values) -> Decomposition:
    """The parts of the change of the mean, from the weights and weighted sums of each cell.

    Weights have a row per cell; sums have a row per cell and a column per bucket.
    """
    share0, share1 = _shares(weight0), _shares(weight1)
    mean0, mean1 = _means(sum0, weight0), _means(sum1, weight1)
    only0, only1 = (weight1 == 0)[:, None], (weight0 == 0)[:, None]
    mean0, mean1 = np.where(only1, mean1, mean0), np.where(only0, mean0, mean1)
    middle = (mean0 + mean1) / 2
    center = ((share0 + share1)[:, None] / 2 * middle).sum(axis=0)
    return Decomposition(
        mix=(share1 - share0)[:, None] * (middle - center),
        within=(mean1 - mean0) * ((share0 + share1) / 2)[:, None],
    )


def by_cell(
    cells: NDArray[np.int64], count: int, weights: Values, values: Values
) -> tuple[Values, Values]:
    """The weight and the weighted sums of each of `count` cells."""
    sums = [np.bincount(cells, weights * column, count) for column in values.T]
    return np.bincount(cells, weights, count), np.array(sums).T


def _shares(weight: Values) -> Values:
    total = weight.sum()
    return weight / total if total else weight


def _means(sums: Values, weight: Values) -> Values:
    held = np.where(weight == 0, 1, weight)
    return np.asarray(sums / held[:, None])
