"""Sequential test that detects when a running job falls below its expected level.

Each observation is the effective share of a time window, between 0 and 1. While the job's average
is at least `expected`, whatever its past, the wealth below grows by at most 1 per observation on
average. Therefore at least `average_run_length` observations pass on average before the first
false alarm, without assumptions on the shape or independence of the noise (a Shiryaev-Roberts
e-detector; Shin, Ramdas and Rinaldo, 2022). Values above `best` count as `best`: the closer it is
to the expected level, the larger the bets can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from headway.errors import UsageError

BETS = (0.05, 0.1, 0.2, 0.4, 0.8)  # shares of the maximum bet; small drops need small bets
MIN_GAP = 0.01  # minimum distance from the expected to the best share; it limits the bets
BASELINE_SIZE = 12  # observations of a job that define its baseline
BASELINE_ERRORS = 3.0  # standard errors that the mean of the baseline may be too high


@dataclass
class EDetector:
    """The wealth of the bets against one running job; `update` takes an observation."""

    expected: float  # the smallest average share that is not a drop
    average_run_length: float  # minimum average number of observations before a false alarm
    best: float = 1.0
    wealths: list[float] = field(default_factory=lambda: [0.0] * len(BETS))
    alarmed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.expected <= 1:
            raise UsageError(
                f"the expected share must be above 0 and at most 1, not {self.expected!r}",
                code="value-out-of-range",
            )
        if not self.expected <= self.best <= 1:
            raise UsageError(
                f"the best share must be from {self.expected} to 1, not {self.best!r}",
                code="value-out-of-range",
            )
        if not self.average_run_length >= 1:
            raise UsageError(
                f"the average run length must be at least 1, not {self.average_run_length!r}",
                code="value-out-of-range",
            )

    @property
    def wealth(self) -> float:
        """The mean over the bets; it alarms at `average_run_length`."""
        return sum(self.wealths) / len(self.wealths)

    def update(self, share: float) -> bool:
        """Process the effective share of one window; True from the alarm on."""
        share = min(self.best, max(0.0, share))
        # In the worst case, the best share, a bet loses its whole wealth and no more.
        max_bet = 1 / max(self.best - self.expected, MIN_GAP)
        self.wealths = [
            (wealth + 1) * max(0.0, 1 + bet * max_bet * (self.expected - share))
            for wealth, bet in zip(self.wealths, BETS, strict=True)
        ]
        self.alarmed = self.alarmed or self.wealth >= self.average_run_length
        return self.alarmed


def baseline(first: Sequence[float], min_drop: float) -> tuple[float, float]:
    """The expected and the best share according to the first observations of a job.

    A drop by less than `min_drop`, or one within the error of the mean, is not a drop.
    """
    error = BASELINE_ERRORS * stdev(first) / sqrt(len(first))
    return fmean(first) - max(min_drop, error), max(first)


def average_run_length(jobs: int, each_per_week: float, alarms_a_week: float = 1.0) -> float:
    """The run length that limits `jobs` to `alarms_a_week` false alarms a week on average."""
    if alarms_a_week <= 0:
        raise UsageError(
            f"alarms a week must be above 0, not {alarms_a_week!r}", code="value-out-of-range"
        )
    return max(1.0, jobs * each_per_week / alarms_a_week)
