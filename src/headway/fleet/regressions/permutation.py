"""Whether the best split of a series is better than chance: its slots of time are shuffled.

Slots are shuffled whole, with all jobs and buckets in them, so that what jobs of the same hours
have in common is no evidence. Buckets differ in noise: each one's best split is measured against
its own shuffles, on a log scale, and the bucket that stands out most speaks for the series.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.fleet.regressions.energy import Deviations
from headway.fleet.regressions.series import Floats

SHUFFLES = 1999  # shuffles
EARLY_STOPS = (
    (99, 0.1),
    (499, 0.03),
)  # after so many, go on only if the p-value is as small as this
BATCH = 200  # shuffles, so that what is worked on stays in the processor's cache
TINY = 1e-30


@dataclass(frozen=True)
class Split:
    """The best split: before slot `at`, seen best in `channel`; how likely by chance."""

    at: int
    channel: int
    p: float
    scores: Floats  # by channel: how many standard deviations above its own shuffles


def best_split(
    deviations: Deviations, least: int, seed: int, shuffles: int = SHUFFLES
) -> Split | None:
    """The split that stands out most, or None if the series is too short for one."""
    slots = deviations.weights.size
    if slots < 2 * least or deviations.weights.sum() <= 0:
        return None
    random = np.random.default_rng(seed)
    seen = deviations.distances(least)
    peaks = seen.max(axis=0)[None]
    for total, promising in (*EARLY_STOPS, (shuffles, 1.0)):
        more = _shuffled_peaks(deviations, least, random, min(total, shuffles) + 1 - len(peaks))
        peaks = np.vstack([peaks, *more])
        p, scores = _judge(peaks)
        if p > promising:
            break
    channel = int(scores.argmax())
    return Split(int(seen[:, channel].argmax()) + least, channel, p, scores)


def _shuffled_peaks(
    deviations: Deviations, least: int, random: np.random.Generator, times: int
) -> list[Floats]:
    slots = np.arange(deviations.weights.size)
    found = []
    for begin in range(0, times, BATCH):
        orders = np.tile(slots, (min(BATCH, times - begin), 1))
        found.append(deviations.peaks(random.permuted(orders, axis=1), least))
    return found


def _judge(peaks: Floats) -> tuple[float, Floats]:
    """The p-value of the first row among all, the first included, and its scores."""
    table = np.log(peaks + TINY)
    spread = table.std(axis=0)
    scores = np.divide(
        table - table.mean(axis=0), spread, out=np.zeros_like(table), where=spread > 1e-9
    )
    best = scores.max(axis=1)
    return float((best >= best[0]).mean()), scores[0]
