"""Lemon nodes: hosts that fail more often than chance, given the hours they were used.

If all hosts were alike, a host with the share `e` of all hours would have each of the K failures
with probability `e`: its count is binomial, so no rate has to be estimated. The false discovery
rate is controlled over all hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headway.fleet.regressions.cohorts import Floats


def benjamini_hochberg(p: Floats, dependent: bool = False) -> Floats:
    """Adjusted p-values (Benjamini-Hochberg): the smallest rate at which each is still rejected.

    With `dependent`, valid under any dependence of the tests (Benjamini-Yekutieli).
    """
    p = np.asarray(p, dtype=np.float64)
    count = p.size
    if not count:
        return p
    order = np.argsort(p, kind="stable")
    ranks = np.arange(1, count + 1)
    penalty = float((1 / ranks).sum()) if dependent else 1.0
    scaled = p[order] * count * penalty / ranks
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


HOST_FDR = 0.05


@dataclass(frozen=True)
class Lemon:
    """A host with its failures and hours, and the failures expected by chance."""

    host: str
    failures: int
    hours: float
    expected: float
    p: float
    level: float  # smallest false discovery rate at which it is still reported


def find_lemons(
    hosts: list[str], failures: Floats, hours: Floats, fdr: float = HOST_FDR
) -> list[Lemon]:
    """Hosts with more failures than their hours explain, the most significant first."""
    total, exposure = int(failures.sum()), float(hours.sum())
    if not total or exposure <= 0:
        return []
    shares = hours / exposure
    p = np.array([binomial_tail(int(k), total, e) for k, e in zip(failures, shares, strict=True)])
    levels = benjamini_hochberg(p)
    lemons = [
        Lemon(
            hosts[i],
            int(failures[i]),
            float(hours[i]),
            float(total * shares[i]),
            float(p[i]),
            float(levels[i]),
        )
        for i in np.flatnonzero(levels <= fdr)
    ]
    return sorted(lemons, key=lambda lemon: (lemon.p, lemon.host))


def binomial_tail(k: int, n: int, chance: float) -> float:
    """P(X >= k) for a binomial count of n trials, summed term by term."""
    if k <= 0:
        return 1.0
    if k > n or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    ratio = chance / (1 - chance)
    # Sum the smaller tail: from k upwards, or from k - 1 downwards.
    if k > n * chance:
        return min(1.0, _tail(k, n, chance, ratio))
    return max(0.0, 1 - _head(k - 1, n, chance, ratio))


def _term(k: int, n: int, chance: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(chance) + (n - k) * math.log1p(-chance))


def _tail(k: int, n: int, chance: float, ratio: float) -> float:
    term = total = _term(k, n, chance)
    while k < n and term > total * 1e-17:
        term *= (n - k) / (k + 1) * ratio
        k += 1
        total += term
    return total


def _head(k: int, n: int, chance: float, ratio: float) -> float:
    term = total = _term(k, n, chance)
    while k > 0 and term > total * 1e-17:
        term *= k / (n - k + 1) / ratio
        k -= 1
        total += term
    return total
