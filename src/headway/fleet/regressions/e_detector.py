"""Sequential test that detects when a running job falls below its expected level.

Each observation is the effective share of a time window, between 0 and 1. While the job's average
is at least `expected`, whatever its past, the wealth below grows by at most 1 per observation on
average. Therefore at least `patience` observations pass on average before the first false alarm,
without assumptions on the shape or independence of the noise (a Shiryaev-Roberts e-detector; Shin,
Ramdas and Rinaldo, 2022). Values above `best` count as `best`: the closer it is to the expected
level, the larger the bets can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from headway.errors import UsageError

BETS = (0.05, 0.1, 0.2, 0.4, 0.8)  # of the most that may be staked; small falls want small bets
MIN_GAP = 0.01  # of what is expected to the best; nearer, bets grow no more
BASELINE_SIZE = 12  # observations of a job that tell what to expect of the ones after them
BASELINE_ERRORS = 3.0  # standard errors that their mean may be above the truth


@dataclass
class EDetector:
    """The stake against one running job; `saw` takes an observation and says whether to alarm."""

    expected: float  # the least share that is no alarm
    average_run_length: float  # observations to a false alarm, on average at least
    best: float = 1.0
    wealths: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    alarmed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.expected <= 1:
            raise UsageError(
                f"the expected share is above 0 and at most 1, not {self.expected!r}",
                code="value-out-of-range",
            )
        if not self.expected <= self.best <= 1:
            raise UsageError(
                f"the best share is from {self.expected} to 1, not {self.best!r}",
                code="value-out-of-range",
            )
        if not self.average_run_length >= 1:
            raise UsageError(
                f"a patience is at least 1 observation, not {self.average_run_length!r}",
                code="value-out-of-range",
            )

    @property
    def wealth(self) -> float:
        """The mean over the bets; an alarm when it reaches the patience."""
        return sum(self.wealths) / len(self.wealths)

    def update(self, share: float) -> bool:
        """Take one window's effective share; True from the alarm on."""
        share = min(self.best, max(0.0, share))
        # At the worst, the best share, a bet may lose its stake and no more.
        max_bet = 1 / max(self.best - self.expected, MIN_GAP)
        self.wealths = [
            (wealth + 1) * max(0.0, 1 + bet * max_bet * (self.expected - share))
            for wealth, bet in zip(self.wealths, BETS, strict=True)
        ]
        self.alarmed = self.alarmed or self.wealth >= self.average_run_length
        return self.alarmed


def baseline(first: Sequence[float], min_drop: float) -> tuple[float, float]:
    """What a job's first observations let one expect of it, and the best of them.

    A fall by less than `least_fall` is none, and neither is one that the mean's error explains.
    """
    error = BASELINE_ERRORS * stdev(first) / sqrt(len(first))
    return fmean(first) - max(min_drop, error), max(first)


def average_run_length(jobs: int, each_per_week: float, alarms_a_week: float = 1.0) -> float:
    """The patience that keeps a fleet of `jobs` to so many false alarms a week on average."""
    if alarms_a_week <= 0:
        raise UsageError(
            f"alarms a week are above 0, not {alarms_a_week!r}", code="value-out-of-range"
        )
    return max(1.0, jobs * each_per_week / alarms_a_week)
