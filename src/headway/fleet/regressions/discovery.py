"""How many of many small p-values to believe: the false discovery rate is kept below a level."""

from __future__ import annotations

import numpy as np

from headway.fleet.regressions.series import Floats


def benjamini_hochberg(p: Floats, dependent: bool = False) -> Floats:
    """Each p-value as the level at which it is still found (Benjamini-Hochberg).

    `dependent` makes it hold for tests that depend on each other in any way (Yekutieli).
    """
    p = np.asarray(p, dtype=np.float64)
    count = p.size
    if not count:
        return p
    order = np.argsort(p, kind="stable")
    ranks = np.arange(1, count + 1)
    penalty = float((1 / ranks).sum()) if dependent else 1.0
    scaled = p[order] * count * penalty / ranks
    found = np.empty(count)
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return found
