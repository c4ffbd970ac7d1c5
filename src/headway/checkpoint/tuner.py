"""Tune the checkpoint interval from the saves and failures of the current run.

There is no clock in this module. Memory and disk checkpoints have a tuner each, which is given the
saves of that level and the failures that were recovered from it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from headway.checkpoint.interval import UNKNOWN_RATE, FailureRate, best, wasted
from headway.errors import UsageError

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """The measured cost of one save."""

    blocked_s: float  # in the call, and waiting for it later
    slowdown_s: float = 0.0  # total slowdown of the steps while it was written
    durable_s: float = 0.0  # from the capture until it is durable
    size: int = 0  # bytes

    def __post_init__(self) -> None:
        for name in ("blocked_s", "slowdown_s", "durable_s", "size"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UsageError(
                    f"{name} of a save must be 0 or more and finite, not {value!r}",
                    code="save-cost-invalid",
                    name=name,
                )

    @property
    def cost_s(self) -> float:
        """The full cost to training."""
        return self.blocked_s + self.slowdown_s


@dataclass(frozen=True, kw_only=True)
class IntervalAdvice:
    """The interval to use now, and the reason."""

    interval_s: float
    # "first" (nothing measured yet), "law", "durable", "bandwidth", "shortest", "longest", or
    # "factor": on its way to `target_s`
    bound: str
    target_s: float
    wasted_percent: float | None  # share of loop time expected at `interval_s`; None: not known yet
    failures_per_hour: float
    failures_low: float  # 95 % credible
    failures_high: float
    cost_s: float | None
    durable_s: float | None
    saves: int  # number of measured saves

    @property
    def reason(self) -> str:
        """The reason as a sentence."""
        if self.wasted_percent is None:
            return f"{self.interval_s:.4g} s until a save and some uptime have been measured"
        why = {
            "law": "loses least",
            "durable": "a save takes that long to become durable",
            "bandwidth": "limited by the allowed bandwidth",
            "shortest": "the shortest allowed interval",
            "longest": "the longest allowed interval",
            "factor": f"on the way to {self.target_s:.4g} s",
        }[self.bound]
        return (
            f"{self.interval_s:.4g} s: {why}; a save costs {self.cost_s:.3g} s, "
            f"{self.failures_per_hour:.3g} failures per hour "
            f"({self.failures_low:.2g} to {self.failures_high:.2g}), "
            f"{self.wasted_percent:.2f} % lost"
        )


class Tuner:
    """Tunes the interval of one level of checkpoints."""

    def __init__(
        self,
        *,
        first: float,
        prior: FailureRate = UNKNOWN_RATE,
        bandwidth: float = math.inf,
        shortest: float = 0.0,
        longest: float = math.inf,
        factor: float = 2.0,
        recent: int = 16,
    ) -> None:
        """Start at `first` seconds; each save changes the interval by at most `factor`.

        The cost of a save is the mean of the last `recent` saves.
        """
        if not 0 <= shortest <= first <= longest or not 0 < first < math.inf:
            raise UsageError(
                f"the first interval, {first!r} s, must be above 0 and between the shortest, "
                f"{shortest!r} s, and the longest, {longest!r} s",
                code="first-interval-out-of-range",
            )
        if not factor > 1 or recent < 1 or not bandwidth > 0:
            raise UsageError(
                f"factor must be above 1, recent at least 1 and bandwidth above 0, "
                f"not {factor!r}, {recent!r} and {bandwidth!r}",
                code="tuner-limits-invalid",
            )
        self._prior = self._rate = prior
        self._bandwidth, self._shortest, self._longest = bandwidth, shortest, longest
        self._factor = factor
        self._saves: deque[SaveCost] = deque(maxlen=recent)
        self._interval, self._bound, self._target = first, "first", first

    def observed(self, *, failures: int, uptime_s: float) -> None:
        """Set the total failures of this run, and the total uptime in which they could happen."""
        self._rate = self._prior.after(failures, uptime_s / HOUR)

    def saved(self, save: SaveCost) -> None:
        """Add a measured save, and move the interval by at most one step."""
        self._saves.append(save)
        if self._rate.known:
            self._move()

    def advice(self) -> IntervalAdvice:
        """The interval to use until the next save."""
        low, high = self._rate.credible()
        measured = bool(self._saves) and self._bound != "first"
        cost, durable = self._mean("cost_s"), self._mean("durable_s")
        share = wasted(self._interval, cost=cost, mtbf=self._mtbf(), durable=durable)
        return IntervalAdvice(
            interval_s=self._interval,
            bound=self._bound,
            target_s=self._target,
            wasted_percent=100 * share if measured else None,
            failures_per_hour=self._rate.mean,
            failures_low=low,
            failures_high=high,
            cost_s=cost if self._saves else None,
            durable_s=durable if self._saves else None,
            saves=len(self._saves),
        )

    def _move(self) -> None:
        # The law is linear in the rate: its expectation over all rates that may be is the law at
        # their mean, so the mean is the rate to use, however uncertain.
        law = best(cost=self._mean("cost_s"), mtbf=self._mtbf())
        # One late save makes the next one wait, so these are not means.
        slowest = max(save.durable_s for save in self._saves)
        largest = max(save.size for save in self._saves)
        wish = min((law.interval, "law"), (self._longest, "longest"))
        floors = [
            (self._shortest, "shortest"),
            (slowest, "durable"),
            (largest / self._bandwidth, "bandwidth"),
        ]
        floor = max(floors)
        target = max(wish, floor)
        near = min(max(target[0], self._interval / self._factor), self._interval * self._factor)
        moved = (near, target[1] if near == target[0] else "factor")
        self._target = target[0]
        self._interval, self._bound = max(moved, floor)

    def _mtbf(self) -> float:
        return HOUR / self._rate.mean if self._rate.known else math.inf

    def _mean(self, field: str) -> float:
        values = [getattr(save, field) for save in self._saves]
        return sum(values) / len(values) if values else 0.0
