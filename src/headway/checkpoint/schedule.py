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
    """What became of a save, what it cost, and how often to save."""
    _emit("checkpoint", fields)


def note_restore(**fields: Any) -> None:
    """Where the state came from."""
    _emit("restored", fields)


def note_preemption(**fields: Any) -> None:
    """All ranks leave the loop, as they were told to."""
    _emit("preempted", fields)


def note(text: str, *, code: str) -> None:
    """Something that a reader of the ledger should know."""
    _emit("note", {"hook": "checkpoint", "code": code, "text": text})


def _emit(event: str, fields: dict[str, Any]) -> None:
    recorder = sdk.active_recorder()
    if recorder is not None:
        from headway.probe.recorder import guard

        recorder.start()
        guard("checkpoint", lambda: recorder.emit(event, **fields))


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
        self._step_count = 0
        self._started = self._last_step_at = clock()
        self._step_times: deque[float] = deque(maxlen=RECENT_STEPS)  # steps with no save under way
        self._save_s = 0.0  # of the step that goes on: in a save
        self._pending: list[PendingCost] = []  # under way
        self._uptime_s, self._failures = 0.0, 0  # of earlier attempts
        self._from_memory = 0  # failures after which training went on from memory

    def due(self, step: int) -> Level | None:
        """Asked once a step, after it."""
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
        """In how many steps each level is due again, by this rank's measure; rank 0's counts."""
        typical = median(self._step_times) if self._step_times else 0.0
        return {
            level: max(1, round(self._interval(level) / typical)) if typical > 0 else 1
            for level in self.levels
        }

    def set_due(self, step: int, steps: Mapping[Level, int], level: Level = "disk") -> None:
        """All ranks have heard rank 0's word at a save of this level, or before the first one."""
        for name in self.levels:
            if level in (name, "disk"):
                self._next[name] = step + steps[name]

    def save_started(self, step: int, level: Level, blocked_s: float) -> None:
        """A save was begun."""
        self._save_s += blocked_s
        self._pending.append(PendingCost(step=step, level=level, blocked_s=blocked_s))

    def save_ended(self, outcome: Mapping[str, Any]) -> PendingCost | None:
        """What became of a save: its step, level, seconds and bytes; None of one not begun here."""
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
        """Nobody will say what became of the saves that are under way."""
        self._pending.clear()

    def step_s(self) -> float:
        """What a step usually takes; 0 while that is not known."""
        return median(self._step_times) if len(self._step_times) >= FIRST_STEPS else 0.0

    @property
    def uptime_s(self) -> float:
        """Seconds that this run has been up, over all attempts."""
        return self._uptime_s + self._clock() - self._started

    def advice(self, level: Level = "disk") -> IntervalAdvice | None:
        """Of the tuner of that level."""
        tuner = self._tuners.get(level)
        return None if tuner is None else tuner.advice()

    def interval_report(self, level: Level) -> dict[str, float]:
        """For the journal: what is used, what would lose least, and what each loses."""
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
        """Uptime and failures over all attempts, for a checkpoint."""
        totals = {"uptime_s": round(self.uptime_s, 3), "failures": self._failures}
        return {**totals, "from_memory": self._from_memory}

    def resumed(self, extra: Mapping[str, Any], *, failed: bool, level: Level) -> None:
        """An earlier attempt had come this far; this one goes on from that level."""
        totals = extra.get(TOTALS) or {}
        self._uptime_s = float(totals.get("uptime_s", 0.0))
        self._failures = int(totals.get("failures", 0)) + failed
        self._from_memory = int(totals.get("from_memory", 0)) + (failed and level == "memory")

    def _failures_of(self, level: Level) -> int:
        """Failures that are recovered from this level; of a single one that is all."""
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


RECENT_SAVES = 16  # saves from which it is known how long one takes


class SaveOutcomes:
    """Of one rank's saves."""

    def __init__(self, schedule: SaveSchedule, rank: int) -> None:
        self._schedule, self._rank = schedule, rank
        self._captures: deque[dict[str, Any]] = (
            deque()
        )  # what ends with its image: a thread adds it
        self._capture_s: dict[int, float] = {}  # by step, until the image of a save was whole
        self._durable_s: deque[float] = deque(maxlen=RECENT_SAVES)
        self.needs_full = False  # a save to disk has failed since this was set

    @property
    def durable_s(self) -> float:
        """Until a save is on disk: the longest of the last ones."""
        return max(self._durable_s, default=0.0)

    def capture_ended(self, step: int, level: Level, seconds: float, good: bool) -> None:
        """An image is whole, or void."""
        outcome = {"step": step, "level": level, "seconds": seconds}
        if not good:
            error = SaveFailed(
                f"no checkpoint of step {step}: a table was changed past its optimizer while it "
                "was copied",
                code="image-not-whole",
                step=step,
            )
            self._captures.append({**outcome, **error_outcome(error)})
        elif level == "memory":
            self._captures.append(outcome)
        else:
            self._capture_s[step] = seconds

    def collect(self, written: Iterable[Mapping[str, Any]]) -> list[SaveFailed]:
        """What the writer tells, and images since the last time; the errors in it."""
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
