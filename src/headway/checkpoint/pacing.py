"""When the next save is due: at the same step on every rank, by what saves have cost so far.

Ranks have clocks of their own, so they agree on a number of steps, rank 0's, once at the beginning
and once with every save. Saves in memory and on disk each have an interval and costs of their own;
what is on disk was in memory first, so a save to disk is one of both.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from headway.checkpoint.interval import wasted
from headway.checkpoint.tuner import HOUR, IntervalAdvice, SaveCost, Tuner
from headway.probe import ENV_LAUNCH

Level = Literal["memory", "disk"]
LEVELS: tuple[Level, ...] = ("disk", "memory")  # of two that are due the first is taken
FIRST_STEPS = 10  # until the ranks know how long a step takes
RECENT_STEPS = 50  # steps
TOTALS = "headway"  # of `extra`: what this run has been through, over all its attempts


@dataclass(kw_only=True)
class PendingCost:
    """What a save that is under way has cost so far."""

    step: int
    level: Level
    blocked_s: float
    slower_s: float = 0.0  # the steps meanwhile, all together


class SaveSchedule:
    """The intervals of one training's saves, fixed or tuned."""

    def __init__(
        self,
        intervals: Mapping[Level, float | Tuner],
        first: Callable[[Any], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.levels = tuple(level for level in LEVELS if level in intervals)
        self._fixed = {k: v for k, v in intervals.items() if not isinstance(v, Tuner)}
        # A fixed interval has a tuner as well, which is asked what would be better.
        self._tuners = {
            level: given if isinstance(given, Tuner) else Tuner(first=given)
            for level, given in intervals.items()
        }
        self._first, self._clock = first, clock
        self._next: dict[Level, int] = {}
        self._seen = 0
        self._begun = self._at = clock()
        self._usual: deque[float] = deque(maxlen=RECENT_STEPS)  # steps with no save under way
        self._away = 0.0  # of the step that goes on: in a save
        self._saves: list[PendingCost] = []  # under way
        self._uptime_s, self._failures = 0.0, 0  # of earlier attempts
        self._from_memory = 0  # failures after which training went on from memory

    def due(self, step: int) -> Level | None:
        """Asked once a step, after it."""
        now = self._clock()
        took, self._at, self._away = now - self._at - self._away, now, 0.0
        self._stepped(took)
        if self.levels and not self._next:
            self._seen += 1
            if self._seen < FIRST_STEPS:
                return None
            self.agreed(step, self._first(self.wanted()))
        due = (level for level, at in self._next.items() if step >= at)
        return min(due, key=LEVELS.index, default=None)

    def wanted(self) -> dict[Level, int]:
        """In how many steps each level is due again, by this rank's measure; rank 0's counts."""
        usual = median(self._usual) if self._usual else 0.0
        return {
            level: max(1, round(self._interval(level) / usual)) if usual > 0 else 1
            for level in self.levels
        }

    def agreed(self, step: int, wanted: Mapping[Level, int], level: Level = "disk") -> None:
        """All ranks have heard rank 0's word at a save of this level, or before the first one."""
        for one in self.levels:
            if level in (one, "disk"):
                self._next[one] = step + wanted[one]

    def saved(self, step: int, level: Level, blocked_s: float) -> None:
        """A save was begun."""
        self._away += blocked_s
        self._saves.append(PendingCost(step=step, level=level, blocked_s=blocked_s))

    def ended(self, outcome: Mapping[str, Any]) -> PendingCost | None:
        """What became of a save: its step, level, seconds and bytes; None of one not begun here."""
        step, level = outcome["step"], outcome["level"]
        cost = next((one for one in self._saves if (one.step, one.level) == (step, level)), None)
        if cost is None:
            return None
        self._saves.remove(cost)
        tuner = self._tuners.get(level)
        if tuner is not None and "error" not in outcome:
            tuner.observed(failures=self._failed(level), uptime_s=self.uptime_s)
            measured = SaveCost(
                blocked_s=cost.blocked_s,
                slowdown_s=max(0.0, cost.slower_s),
                durable_s=outcome["seconds"],
                size=outcome.get("bytes", 0),
            )
            tuner.saved(measured)
        return cost

    def lost(self) -> None:
        """Nobody will say what became of the saves that are under way."""
        self._saves.clear()

    def step_s(self) -> float:
        """What a step usually takes; 0 while that is not known."""
        return median(self._usual) if len(self._usual) >= FIRST_STEPS else 0.0

    @property
    def uptime_s(self) -> float:
        """Seconds that this run has been up, over all attempts."""
        return self._uptime_s + self._clock() - self._begun

    def advice(self, level: Level = "disk") -> IntervalAdvice | None:
        """Of the tuner of that level."""
        tuner = self._tuners.get(level)
        return None if tuner is None else tuner.advice()

    def rhythm(self, level: Level) -> dict[str, float]:
        """For the journal: what is used, what would lose least, and what each loses."""
        advice = self.advice(level)
        if advice is None:
            return {}
        told = {"interval_s": self._interval(level)}
        if advice.wasted_percent is None:
            return told
        told["recommended_s"] = advice.target_s
        for name, seconds in (("wasted", told["interval_s"]), ("recommended", advice.target_s)):
            share = wasted(
                seconds,
                cost=advice.cost_s or 0.0,
                mtbf=HOUR / advice.failures_per_hour,
                durable=advice.durable_s or 0.0,
            )
            told[f"{name}_percent"] = 100 * share
        told["failures_per_hour"] = advice.failures_per_hour
        told["failures_low"], told["failures_high"] = advice.failures_low, advice.failures_high
        return told

    def told(self) -> dict[str, Any]:
        """Uptime and failures over all attempts, for a checkpoint."""
        told = {"uptime_s": round(self.uptime_s, 3), "failures": self._failures}
        return {**told, "from_memory": self._from_memory}

    def resumed(self, extra: Mapping[str, Any], *, failed: bool, level: Level) -> None:
        """An earlier attempt had come this far; this one goes on from that level."""
        told = extra.get(TOTALS) or {}
        self._uptime_s = float(told.get("uptime_s", 0.0))
        self._failures = int(told.get("failures", 0)) + failed
        self._from_memory = int(told.get("from_memory", 0)) + (failed and level == "memory")

    def _failed(self, level: Level) -> int:
        """Failures that are recovered from this level; of a single one that is all."""
        if len(self.levels) == 1:
            return self._failures
        return self._from_memory if level == "memory" else self._failures - self._from_memory

    def _interval(self, level: Level) -> float:
        fixed = self._fixed.get(level)
        return self._tuners[level].advice().interval_s if fixed is None else fixed

    def _stepped(self, took: float) -> None:
        if not self._saves:
            self._usual.append(took)
        elif self._usual:
            longer = (took - median(self._usual)) / len(self._saves)
            for cost in self._saves:
                cost.slower_s += longer


def is_restart(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process belongs to an attempt after a failure."""
    _, dot, attempt = env.get(ENV_LAUNCH, "").rpartition(".")
    again = bool(dot) and attempt.isdecimal()
    return again or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
