"""Attribute a change of a weighted mean to cells, and to recorded fields that changed with it.

Cells may be teams, models, job durations or values of a recorded field. With the share `u` of the
weight and the mean `x` of each cell, before (0) and after (1):

    x1 - x0 = sum((u1 - u0) * ((x0 + x1) / 2 - mid))  +  sum((x1 - x0) * (u0 + u1) / 2)
                    mix: cells grew and shrank            within: cells themselves changed

Subtracting `mid`, the overall mean, does not change the sum; a cell that grew then counts only for
its difference from the rest. A cell that is missing on one side has not changed: it is mix.

A field is reported if its values shift more at the change point than at other moments of the same
slice; a code version that is new every day is not evidence. The share of the bucket's change that
the field explains is the mix part of the change over the field's values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.fleet.regressions.cohorts import Floats, Ints

Values = NDArray[Any]  # floats, or exact fractions as objects


@dataclass(frozen=True)
class Decomposition:
    """The contribution of each cell to the change: a row per cell, a column per bucket."""

    mix: Values
    within: Values

    @property
    def total(self) -> Values:
        """The change of each column, which is the sum of all contributions."""
        return np.asarray(self.mix.sum(axis=0) + self.within.sum(axis=0))


def decompose(weight0: Values, sum0: Values, weight1: Values, sum1: Values) -> Decomposition:
    """Decompose the change of a weighted mean, given the weights and weighted sums of each cell.

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
    divisor = np.where(weight == 0, 1, weight)
    return np.asarray(sums / divisor[:, None])


DAYS = 86400.0
NEAR = 7 * DAYS  # on either side of the change point
BLUR = 1 * DAYS  # uncertainty of the change point: jobs within it do not count
UNUSUAL = 0.25  # minimum share of the weight that shifts, beyond what is usual
PLACEBOS = 24


@dataclass(frozen=True)
class FieldShift:
    """A field with its most common values before and after, and the shifted share of the weight."""

    field: str
    before: str
    after: str
    moved: float  # share of the weight whose value differs after the change point, 0 to 1
    usual: float  # the same at other moments
    explains: float | None  # share of the bucket's change that the field explains


def field_shifts(
    fields: dict[str, NDArray[Any]], start: Floats, weights: Floats, points: Floats, at: float
) -> list[FieldShift]:
    """Fields that shifted at `at`, the largest shift first; `points` are those of the bucket."""
    shifts = []
    for name, values in fields.items():
        labels, codes = np.unique(values.astype(str), return_inverse=True)
        shift = (
            _field_shift(name, labels, codes, start, weights, points, at)
            if labels.size > 1
            else None
        )
        if shift:
            shifts.append(shift)
    return sorted(shifts, key=lambda shift: (shift.usual - shift.moved, shift.field))


def _field_shift(
    name: str,
    labels: NDArray[np.str_],
    codes: Ints,
    start: Floats,
    weights: Floats,
    points: Floats,
    at: float,
) -> FieldShift | None:
    sides = _sides(codes, labels.size, start, weights, at)
    if sides is None:
        return None
    before, after = sides
    moved = float(np.abs(after - before).sum() / 2)
    placebos = _placebos(codes, labels.size, start, weights, at)
    usual = float(np.mean(placebos)) if placebos else 0.0
    if moved < usual + UNUSUAL:
        return None
    old, new = int(before.argmax()), int((after - before).argmax())
    return FieldShift(
        name, str(labels[old]), str(labels[new]), moved, usual,
        _explained_share(codes, labels.size, start, weights, points, at),
    )  # fmt: skip


def _sides(
    codes: Ints, count: int, start: Floats, weights: Floats, at: float
) -> tuple[Floats, Floats] | None:
    """The weight shares of the values near `at`, before and after it."""
    blur = _blur(start, at)
    before = (start >= at - NEAR) & (start < at - blur)
    after = (start >= at + blur) & (start < at + NEAR)
    tables = [np.bincount(codes[side], weights[side], count) for side in (before, after)]
    if not all(table.sum() > 0 for table in tables):
        return None
    return tables[0] / tables[0].sum(), tables[1] / tables[1].sum()


def _blur(start: Floats, at: float) -> float:
    """The uncertainty of the change point; less if there is little data after it."""
    return min(BLUR, max(0.0, float(start.max()) - at) / 2)


def _placebos(codes: Ints, count: int, start: Floats, weights: Floats, at: float) -> list[float]:
    """The shifted shares of the weight at other moments, all far from the change point."""
    moments = np.linspace(start.min() + NEAR, start.max() - NEAR, PLACEBOS)
    far = moments[np.abs(moments - at) > NEAR]
    sides = (_sides(codes, count, start, weights, moment) for moment in far)
    return [float(np.abs(pair[1] - pair[0]).sum() / 2) for pair in sides if pair is not None]


def _explained_share(
    codes: Ints, count: int, start: Floats, weights: Floats, points: Floats, at: float
) -> float | None:
    blur = _blur(start, at)
    before, after = start < at - blur, start >= at + blur
    value = points[:, None]
    parts = decompose(
        *by_cell(codes[before], count, weights[before], value[before]),
        *by_cell(codes[after], count, weights[after], value[after]),
    )
    total = float(parts.total[0])
    # Noise can make the mix part larger than the change, or reverse its sign.
    return min(1.0, max(0.0, float(parts.mix[:, 0].sum()) / total)) if total else None
