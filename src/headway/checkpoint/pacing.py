"""When the next save is due: at the same step on every rank, by what saves have cost so far.

Ranks have clocks of their own, so they agree on a number of steps, rank 0's, once at the beginning
and once with every save.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from headway.checkpoint.tuner import Advice, SaveCost, Tuner
from headway.probe import ENV_LAUNCH

FIRST_STEPS = 10  # until the ranks know how long a step takes
RECENT = 50  # steps
TOTALS = "headway"  # of `extra`: what this run has been through, over all its attempts


class Pacing:
    """The interval of one training's saves, fixed or tuned."""

    def __init__(
        self,
        interval: float | Tuner,
        gathered: Callable[[Any], list[Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval, self._gathered, self._clock = interval, gathered, clock
        self._next: int | None = None
        self._seen = 0
        self._begun = self._at = clock()
        self._usual: deque[float] = deque(maxlen=RECENT)  # steps with no save under way
        self._away = 0.0  # of the step that goes on: in a save
        self._saves: dict[int, tuple[float, float]] = {}  # step -> blocked, slower; under way
        self._before = 0.0, 0  # uptime and failures of earlier attempts

    def due(self, step: int) -> bool:
        """Asked once a step, after it."""
        now = self._clock()
        took, self._at, self._away = now - self._at - self._away, now, 0.0
        self._stepped(took)
        if self._next is None:
            self._seen += 1
            if self._seen < FIRST_STEPS:
                return False
            self._agree(step)
        return self._next is not None and step >= self._next

    def saved(self, step: int, blocked_s: float) -> None:
        """A save was begun; all ranks come here."""
        self._away += blocked_s
        self._saves[step] = blocked_s, 0.0
        self._agree(step)

    def ended(self, outcomes: Iterable[Mapping[str, Any]]) -> None:
        """What became of saves."""
        for outcome in outcomes:
            blocked, slower = self._saves.pop(outcome["step"], (None, 0.0))
            if blocked is None or "error" in outcome or not isinstance(self._interval, Tuner):
                continue
            uptime, failures = self.totals()
            self._interval.observed(failures=failures, uptime_s=uptime)
            cost = SaveCost(
                blocked_s=blocked,
                slowdown_s=max(0.0, slower),
                durable_s=outcome["seconds"],
                size=outcome.get("bytes", 0),
            )
            self._interval.saved(cost)

    def advice(self) -> Advice | None:
        """Of the tuner, if there is one."""
        return self._interval.advice() if isinstance(self._interval, Tuner) else None

    def totals(self) -> tuple[float, int]:
        """Seconds that this run has been up, and its failures, over all attempts."""
        uptime, failures = self._before
        return uptime + self._clock() - self._begun, failures

    def told(self) -> dict[str, Any]:
        """The same, for a checkpoint."""
        uptime, failures = self.totals()
        return {"uptime_s": round(uptime, 3), "failures": failures}

    def resumed(self, extra: Mapping[str, Any], *, failed: bool) -> None:
        """An earlier attempt had come this far."""
        told = extra.get(TOTALS) or {}
        self._before = float(told.get("uptime_s", 0.0)), int(told.get("failures", 0)) + failed

    def _stepped(self, took: float) -> None:
        if not self._saves:
            self._usual.append(took)
        elif self._usual:
            longer = took - median(self._usual)
            self._saves = {
                s: (blocked, slow + longer) for s, (blocked, slow) in self._saves.items()
            }

    def _agree(self, step: int) -> None:
        wanted = self._interval
        seconds = wanted.advice().interval_s if isinstance(wanted, Tuner) else wanted
        usual = median(self._usual) if self._usual else seconds
        steps = max(1, round(seconds / max(usual, 1e-9)))
        self._next = step + int(self._gathered(steps)[0])


def restarted(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process belongs to an attempt after a failure."""
    _, dot, attempt = env.get(ENV_LAUNCH, "").rpartition(".")
    again = bool(dot) and attempt.isdecimal()
    return again or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
