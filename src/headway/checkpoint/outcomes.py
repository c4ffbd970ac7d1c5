"""What became of saves: measured, told to the journal and to the tuners, and their errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from headway.checkpoint import record
from headway.checkpoint.pacing import Level, SaveSchedule
from headway.checkpoint.writer.write import error_outcome
from headway.errors import SaveFailed

RECENT_SAVES = 16  # saves from which it is known how long one takes


class SaveOutcomes:
    """Of one rank's saves."""

    def __init__(self, pacing: SaveSchedule, rank: int) -> None:
        self._pacing, self._rank = pacing, rank
        self._copied: deque[dict[str, Any]] = deque()  # what ends with its image: a thread adds it
        self._copied_s: dict[int, float] = {}  # by step, until the image of a save was whole
        self._durable_s: deque[float] = deque(maxlen=RECENT_SAVES)
        self.broken = False  # a save to disk has failed since this was set

    @property
    def durable_s(self) -> float:
        """Until a save is on disk: the longest of the last ones."""
        return max(self._durable_s, default=0.0)

    def copied(self, step: int, level: Level, seconds: float, good: bool) -> None:
        """An image is whole, or void."""
        outcome = {"step": step, "level": level, "seconds": seconds}
        if not good:
            void = SaveFailed(
                f"no checkpoint of step {step}: a table was changed past its optimizer while it "
                "was copied",
                code="image-not-whole",
                step=step,
            )
            self._copied.append({**outcome, **error_outcome(void)})
        elif level == "memory":
            self._copied.append(outcome)
        else:
            self._copied_s[step] = seconds

    def heard(self, written: Iterable[Mapping[str, Any]]) -> list[SaveFailed]:
        """What the writer tells, and images since the last time; the errors in it."""
        outcomes = [self._copied.popleft() for _ in range(len(self._copied))]
        for one in written:
            seconds = one["seconds"] + self._copied_s.pop(one["step"], 0.0)
            outcomes.append({**one, "level": "disk", "seconds": seconds})
        for outcome in outcomes:
            if outcome["level"] == "disk" and "error" in outcome:
                self.broken = True
            elif outcome["level"] == "disk":
                self._durable_s.append(outcome["seconds"])
            self._tell(outcome)
        return [
            SaveFailed(one["error"], code=one["code"], **one["fields"])
            for one in outcomes
            if "error" in one
        ]

    def _tell(self, outcome: Mapping[str, Any]) -> None:
        cost = self._pacing.ended(outcome)
        level: Level = outcome["level"]
        if cost is None or (level == "memory" and self._rank):
            return
        told = {"step": cost.step, "level": level, "blocked_s": cost.blocked_s}
        told |= {"slower_s": max(0.0, cost.slower_s), "durable_s": outcome["seconds"]}
        told |= {name: outcome[name] for name in ("bytes", "error") if name in outcome}
        record.note_save(**told, **self._pacing.rhythm(level))
