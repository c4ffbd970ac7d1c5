"""The records of a run on one clock: launches, attempts and ranks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from headway.journal.reader import Journal
from headway.ledger.model import Outcome
from headway.ledger.segments import union_sorted

MIN_STEPS_OF_OTHERS = 10  # after so many steps of others, a rank without steps is no trainer


@dataclass(slots=True)
class Launch:
    """One invocation of the launcher, in run time."""

    name: str
    begin: int
    end: int
    exit_code: int | None
    ended: bool
    journals: tuple[Journal, ...] = ()
    allocated: int | None = None
    queued: int | None = None
    stop_signal: int | None = None
    stopped_at: int | None = None
    spawned: int | None = None  # when the first launcher started the command


@dataclass(slots=True)
class AttemptRecord:
    """One attempt: its ranks and other processes, and how it ended."""

    launch: Launch
    ranks: list[RankRecord]
    begin: int
    end: int = 0
    outcome: Outcome = "running"
    stop_requested_at: int | None = None
    is_last_of_launch: bool = True  # what the launcher recorded on the end applies to this attempt
    recovers: bool = False  # it follows an interrupted attempt
    agents: list[Journal] = field(default_factory=list)
    others: list[Journal] = field(default_factory=list)  # neither ranks nor agents

    def trainers(self) -> list[RankRecord]:
        """Return the ranks that must all train for a second to be effective."""
        most = max((rank.steps for rank in self.ranks), default=0)
        if most < MIN_STEPS_OF_OTHERS:
            return self.ranks
        return [rank for rank in self.ranks if rank.steps]


class RankRecord:
    """A rank's journal in run time."""

    def __init__(self, journal: Journal, rank: int, shift: int) -> None:
        self.journal = journal
        self.rank = rank
        self.shift = shift
        self.begin = journal.begin + shift
        self.opened = _opened(journal) + shift  # when its interpreter was ready
        self.last_sign = journal.last_sign() + shift
        self.thread = _stepping_thread(journal)
        windows = journal.windows
        self.steps = windows.last[-1] if windows else 0
        self.first_steps = windows.last[0] if windows else 0  # in the first window, usually 1
        self.first_step_end = windows.end[0] + shift if windows else None
        self.last_step_end = windows.end[-1] + shift if windows else None
        self.declared = [
            event["t"] + shift for event in journal.named("stages")
        ]  # ends of declared starts
        self.device_drains: list[tuple[int, int]] = sorted(
            (event["t"] + shift, event["t"] + shift + event["ns"])
            for event in journal.named("drain")
            if type(event.get("ns")) is int
        )

    def step_end(self, step: int) -> int | None:
        """Return when this process finished its step number `step`; None before the first one."""
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
        """Return when the device finished a step, which may be later than on the host."""
        end, following = self.step_end(step), self.step_end(step + 1)
        if end is None or following is None:
            return end
        return max(
            [end, *(until for since, until in self.device_drains if end <= since < following)]
        )

    def steps_at(self, t: int) -> int:
        """Return the number of steps finished at an instant."""
        windows, at = self.journal.windows, t - self.shift
        index = bisect_right(windows.end, at)
        done = windows.last[index - 1] if index else 0
        if index == len(windows) or not windows.start[index] or at <= windows.start[index]:
            return done
        start, end = windows.start[index], windows.end[index]
        return done + (windows.last[index] - done) * (at - start) // (end - start)

    @cached_property
    def step_time(self) -> int | None:
        """Median time of a step without other work of the loop; the first window is ignored."""
        busy_elsewhere = self._not_training()
        index = 0
        rows = []
        for window in islice(self.journal.windows, 1, None):
            start, end = window.start or window.end, window.end
            while index < len(busy_elsewhere) and busy_elsewhere[index][1] <= start:
                index += 1
            busy = end - start - window.wait
            scan = index
            while scan < len(busy_elsewhere) and busy_elsewhere[scan][0] < end:
                busy -= min(busy_elsewhere[scan][1], end) - max(busy_elsewhere[scan][0], start)
                scan += 1
            count = window.last - window.first + 1
            if busy > 0:
                rows.append((busy // count, count))
        return _weighted_median(rows)

    def _not_training(self) -> list[tuple[int, int]]:
        """Return when the training thread was in a span, on the journal's own clock."""
        spans = sorted(
            (span.start, span.end)
            for span in self.journal.spans
            if span.end is not None
            and span.thread == self.thread
            and span.fields.get("background") is not True
        )
        return union_sorted(spans)

    @property
    def wrote_exit(self) -> bool:
        """Whether the process recorded its end, so that it did not hang and was not killed."""
        return any(True for _ in self.journal.named("exit", "error"))

    @property
    def raised(self) -> int | None:
        """When an exception ended the process."""
        return min((e["t"] + self.shift for e in self.journal.named("error")), default=None)

    @property
    def exited_cleanly(self) -> bool:
        """Whether the process ended without an exception."""
        return exited_cleanly(self.journal)


def exited_cleanly(journal: Journal) -> bool:
    """Whether a journal has the end of its process and no exception."""
    return {event["ev"] for event in journal.named("exit", "error")} == {"exit"}


def _opened(journal: Journal) -> int:
    """Return when the interpreter was ready; old probes wrote the head late, after first spans."""
    times = [
        span.end if span.name == "import" else span.start
        for span in journal.spans
        if span.name != "import" or (span.fields.get("module") == "torch" and span.end is not None)
    ]
    return min([journal.opened, *(t for t in times if t is not None)])


def _stepping_thread(journal: Journal) -> int:
    thread = journal.facts.get("stepping_thread")
    for event in journal.named("stepping"):
        thread = event.get("th")
    return thread if type(thread) is int else 0


def _weighted_median(rows: Iterable[tuple[int, int]]) -> int | None:
    """Return the median of values with weights."""
    ordered = sorted(rows)
    count = sum(weight for _, weight in ordered)
    middle, below = [], 0
    for value, weight in ordered:
        middle += [value for place in ((count - 1) // 2, count // 2) if 0 <= place - below < weight]
        below += weight
    return sum(middle) // 2 if middle else None
