"""When to save, what saves have cost, and their record in the journal.

All ranks save at the same step: they agree on a number of steps, measured by rank 0, before the
first save and again with every save. Memory and disk checkpoints have separate intervals and costs;
a save to disk is in memory first, so it counts as both.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from headway import sdk
from headway.checkpoint.interval import wasted
from headway.checkpoint.tuner import HOUR, IntervalAdvice, SaveCost, Tuner
from headway.checkpoint.writer.tasks import error_outcome
from headway.errors import SaveFailed
from headway.probe import ENV_LAUNCH


def note_save(**fields: Any) -> None:
    """Record the result of a save, its cost, and the recommended interval."""
    _emit("checkpoint", fields)


def note_restore(**fields: Any) -> None:
    """Record where the state was restored from."""
    _emit("restored", fields)


def note_preemption(**fields: Any) -> None:
    """Record that all ranks leave the loop because of a preemption notice."""
    _emit("preempted", fields)


def note(text: str, *, code: str) -> None:
    """Record a note for readers of the ledger."""
    _emit("note", {"hook": "checkpoint", "code": code, "text": text})


def _emit(event: str, fields: dict[str, Any]) -> None:
    recorder = sdk.active_recorder()
    if recorder is not None:
        from headway.probe.recorder import guard

        recorder.start()
        guard("checkpoint", lambda: recorder.emit(event, **fields))


Level = Literal["memory", "disk"]
LEVELS: tuple[Level, ...] = ("disk", "memory")  # if both are due, the first is used
FIRST_STEPS = 10  # steps before the step time counts as known
RECENT_STEPS = 50  # steps
TOTALS = "headway"  # key of `extra`: uptime and failures of this run over all its attempts


@dataclass(kw_only=True)
class PendingCost:
    """The cost so far of a save that is in progress."""

    step: int
    level: Level
    blocked_s: float
    slower_s: float = 0.0  # total slowdown of the steps since then


class SaveSchedule:
    """The save intervals of one training job, fixed or tuned."""

    def __init__(
        self,
        intervals: Mapping[Level, float | Tuner],
        first: Callable[[Any], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.levels = tuple(level for level in LEVELS if level in intervals)
        self._fixed = {k: v for k, v in intervals.items() if not isinstance(v, Tuner)}
        # A fixed interval has a tuner as well, which reports what would be better.
        self._tuners = {
            level: given if isinstance(given, Tuner) else Tuner(first=given)
            for level, given in intervals.items()
        }
        self._first, self._clock = first, clock
        self._next: dict[Level, int] = {}
        self._step_count = 0
        self._started = self._last_step_at = clock()
        # steps without a save in progress
        self._step_times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._save_s = 0.0  # seconds of the current step spent in a save
        self._pending: list[PendingCost] = []  # saves in progress
        self._uptime_s, self._failures = 0.0, 0  # of earlier attempts
        self._from_memory = 0  # failures that were recovered from memory

    def due(self, step: int) -> Level | None:
        """Return where to save now, or None. Call it once per step, after the step."""
        now = self._clock()
        seconds, self._last_step_at, self._save_s = (
            now - self._last_step_at - self._save_s,
            now,
            0.0,
        )
        self._record_step(seconds)
        if self.levels and not self._next:
            self._step_count += 1
            if self._step_count < FIRST_STEPS:
                return None
            self.set_due(step, self._first(self.steps_until_due()))
        due = (level for level, at in self._next.items() if step >= at)
        return min(due, key=LEVELS.index, default=None)

    def steps_until_due(self) -> dict[Level, int]:
        """Steps until each level is due again, by this rank; the value of rank 0 is used."""
        typical = median(self._step_times) if self._step_times else 0.0
        return {
            level: max(1, round(self._interval(level) / typical)) if typical > 0 else 1
            for level in self.levels
        }

    def set_due(self, step: int, steps: Mapping[Level, int], level: Level = "disk") -> None:
        """Set when the levels are due: before the first save, or after a save of this level."""
        for name in self.levels:
            if level in (name, "disk"):
                self._next[name] = step + steps[name]

    def save_started(self, step: int, level: Level, blocked_s: float) -> None:
        """Record a save that has started."""
        self._save_s += blocked_s
        self._pending.append(PendingCost(step=step, level=level, blocked_s=blocked_s))

    def save_ended(self, outcome: Mapping[str, Any]) -> PendingCost | None:
        """Record the outcome of a save; None if it was not started here."""
        step, level = outcome["step"], outcome["level"]
        cost = next(
            (
                pending
                for pending in self._pending
                if (pending.step, pending.level) == (step, level)
            ),
            None,
        )
        if cost is None:
            return None
        self._pending.remove(cost)
        tuner = self._tuners.get(level)
        if tuner is not None and "error" not in outcome:
            tuner.observed(failures=self._failures_of(level), uptime_s=self.uptime_s)
            measured = SaveCost(
                blocked_s=cost.blocked_s,
                slowdown_s=max(0.0, cost.slower_s),
                durable_s=outcome["seconds"],
                size=outcome.get("bytes", 0),
            )
            tuner.saved(measured)
        return cost

    def forget_pending(self) -> None:
        """Forget the saves in progress; their outcomes will not be known."""
        self._pending.clear()

    def step_s(self) -> float:
        """The usual seconds of a step; 0 while unknown."""
        return median(self._step_times) if len(self._step_times) >= FIRST_STEPS else 0.0

    @property
    def uptime_s(self) -> float:
        """Seconds of uptime of this run, over all attempts."""
        return self._uptime_s + self._clock() - self._started

    def advice(self, level: Level = "disk") -> IntervalAdvice | None:
        """The advice of the tuner of that level."""
        tuner = self._tuners.get(level)
        return None if tuner is None else tuner.advice()

    def interval_report(self, level: Level) -> dict[str, float]:
        """For the journal: the current and the recommended interval, and their losses."""
        advice = self.advice(level)
        if advice is None:
            return {}
        report = {"interval_s": self._interval(level)}
        if advice.wasted_percent is None:
            return report
        report["recommended_s"] = advice.target_s
        for name, seconds in (("wasted", report["interval_s"]), ("recommended", advice.target_s)):
            share = wasted(
                seconds,
                cost=advice.cost_s or 0.0,
                mtbf=HOUR / advice.failures_per_hour,
                durable=advice.durable_s or 0.0,
            )
            report[f"{name}_percent"] = 100 * share
        report["failures_per_hour"] = advice.failures_per_hour
        report["failures_low"], report["failures_high"] = advice.failures_low, advice.failures_high
        return report

    def totals(self) -> dict[str, Any]:
        """Uptime and failures over all attempts, to be stored in a checkpoint."""
        totals = {"uptime_s": round(self.uptime_s, 3), "failures": self._failures}
        return {**totals, "from_memory": self._from_memory}

    def resumed(self, extra: Mapping[str, Any], *, failed: bool, level: Level) -> None:
        """Continue from the totals of an earlier attempt, which was restored from that level."""
        totals = extra.get(TOTALS) or {}
        self._uptime_s = float(totals.get("uptime_s", 0.0))
        self._failures = int(totals.get("failures", 0)) + failed
        self._from_memory = int(totals.get("from_memory", 0)) + (failed and level == "memory")

    def _failures_of(self, level: Level) -> int:
        """Failures recovered from this level; with a single level, all of them."""
        if len(self.levels) == 1:
            return self._failures
        return self._from_memory if level == "memory" else self._failures - self._from_memory

    def _interval(self, level: Level) -> float:
        fixed = self._fixed.get(level)
        return self._tuners[level].advice().interval_s if fixed is None else fixed

    def _record_step(self, seconds: float) -> None:
        if not self._pending:
            self._step_times.append(seconds)
        elif self._step_times:
            slower_s = (seconds - median(self._step_times)) / len(self._pending)
            for cost in self._pending:
                cost.slower_s += slower_s


def is_restart(env: Mapping[str, str] = os.environ) -> bool:
    """Whether this process belongs to an attempt after a failure."""
    _, dot, attempt = env.get(ENV_LAUNCH, "").rpartition(".")
    restarted = bool(dot) and attempt.isdecimal()
    return restarted or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


RECENT_SAVES = 16  # saves from which the duration of a save is known


class SaveOutcomes:
    """The results of one rank's saves."""

    def __init__(self, schedule: SaveSchedule, rank: int) -> None:
        self._schedule, self._rank = schedule, rank
        self._captures: deque[dict[str, Any]] = (
            deque()
        )  # outcomes known when the capture ends; appended by a thread
        # by step: seconds until the staging buffer was complete
        self._capture_s: dict[int, float] = {}
        self._durable_s: deque[float] = deque(maxlen=RECENT_SAVES)
        self.needs_full = False  # a save to disk has failed since this was last reset

    @property
    def durable_s(self) -> float:
        """Seconds until a save is on disk: the maximum of the recent saves."""
        return max(self._durable_s, default=0.0)

    def capture_ended(self, step: int, level: Level, seconds: float, good: bool) -> None:
        """Record that a staging buffer is complete, or invalid."""
        outcome = {"step": step, "level": level, "seconds": seconds}
        if not good:
            error = SaveFailed(
                f"no checkpoint of step {step}: a table was modified outside its "
                "optimizer while it "
                "was being copied",
                code="image-not-whole",
                step=step,
            )
            self._captures.append({**outcome, **error_outcome(error)})
        elif level == "memory":
            self._captures.append(outcome)
        else:
            self._capture_s[step] = seconds

    def collect(self, written: Iterable[Mapping[str, Any]]) -> list[SaveFailed]:
        """Record the outcomes since the last call, and return their errors."""
        outcomes = [self._captures.popleft() for _ in range(len(self._captures))]
        for outcome in written:
            seconds = outcome["seconds"] + self._capture_s.pop(outcome["step"], 0.0)
            outcomes.append({**outcome, "level": "disk", "seconds": seconds})
        for outcome in outcomes:
            if outcome["level"] == "disk" and "error" in outcome:
                self.needs_full = True
            elif outcome["level"] == "disk":
                self._durable_s.append(outcome["seconds"])
            self._note(outcome)
        return [
            SaveFailed(outcome["error"], code=outcome["code"], **outcome["fields"])
            for outcome in outcomes
            if "error" in outcome
        ]

    def _note(self, outcome: Mapping[str, Any]) -> None:
        cost = self._schedule.save_ended(outcome)
        level: Level = outcome["level"]
        if cost is None or (level == "memory" and self._rank):
            return
        fields = {"step": cost.step, "level": level, "blocked_s": cost.blocked_s}
        fields |= {"slower_s": max(0.0, cost.slower_s), "durable_s": outcome["seconds"]}
        fields |= {name: outcome[name] for name in ("bytes", "error") if name in outcome}
        note_save(**fields, **self._schedule.interval_report(level))
