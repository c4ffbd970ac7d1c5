"""A rank's journal in one attempt, placed on the run's axis, and what became of it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from headway.journal.reader import Journal
from headway.ledger.leaves import DETECTION, SHUTDOWN, UNKNOWN
from headway.ledger.model import Outcome


@dataclass(frozen=True, slots=True)
class Fate:
    """What the launcher knows of the attempt a rank lived in, on the run's axis."""

    start: int
    end: int
    group: str  # "start" in the first attempt, "recover" later
    outcome: Outcome
    told_to_stop: int | None = None

    @property
    def running(self) -> bool:
        """It goes on: what is open stays open."""
        return self.outcome == "running"

    @property
    def interrupted(self) -> bool:
        """It did not come to its own end."""
        return self.outcome in ("failed", "preempted", "stopped")

    @property
    def rest(self) -> str:
        """What follows the last sign of life."""
        if self.running:
            return UNKNOWN
        return DETECTION if self.outcome in ("failed", "preempted") else SHUTDOWN


class Life:
    """A rank's journal, placed on the run's axis."""

    def __init__(self, journal: Journal, rank: int, shift: int) -> None:
        self.journal = journal
        self.rank = rank
        self.shift = shift
        self.begin = journal.begin + shift
        self.last_sign = journal.last_sign() + shift
        windows = journal.windows
        self.steps = windows.last[-1] if windows else 0
        self.first_steps = windows.last[0] if windows else 0  # in the first window: mostly one
        self.first_step_end = windows.end[0] + shift if windows else None
        self.last_step_end = windows.end[-1] + shift if windows else None
        self.declared = [event["t"] + shift for event in journal.named("stages")]  # starts, done
        self.drains: list[tuple[int, int]] = sorted(
            (event["t"] + shift, event["t"] + shift + event["ns"])
            for event in journal.named("drain")
            if type(event.get("ns")) is int
        )

    def step_end(self, step: int) -> int | None:
        """When step number `step` of this life ended; None before its first one."""
        windows = self.journal.windows
        if step <= 0 or not windows:
            return None
        if step >= self.steps:
            return self.last_step_end
        window = windows[bisect_left(windows.last, step)]
        start = window.start or window.end
        done, of = step - window.first + 1, window.last - window.first + 1
        return self.shift + start + (window.end - start) * done // of

    def work_end(self, step: int) -> int | None:
        """The same for the device, which may have worked off that step behind the host's back."""
        end, following = self.step_end(step), self.step_end(step + 1)
        if end is None or following is None:
            return end
        return max([end, *(until for since, until in self.drains if end <= since < following)])

    @property
    def step_time(self) -> int | None:
        """Mean time of a step after the first ones, which are no measure."""
        if self.first_step_end is None or self.last_step_end is None:
            return None
        if self.steps <= self.first_steps:
            return None
        return (self.last_step_end - self.first_step_end) // (self.steps - self.first_steps)

    @property
    def ended_by_itself(self) -> bool:
        """It wrote its own end: it did not hang, and was not killed."""
        return any(True for _ in self.journal.named("exit", "error"))

    @property
    def left_in_order(self) -> bool:
        """It ran to its end without an exception."""
        return self.ended_by_itself and not any(True for _ in self.journal.named("error"))
