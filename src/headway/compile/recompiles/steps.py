"""How long a step takes when nothing comes between: the median, from the windows of a journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headway.journal.reader import Journal

MIN_STEPS = 20
MIN_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class StepTime:
    """The median step, and of how many."""

    ns: int
    steps: int


def step_time(journals: Iterable[Journal]) -> StepTime | None:
    """That of the slowest rank; None where no rank has made enough steps undisturbed."""
    times = [_journal_step_time(journal) for journal in journals if journal.role != "launcher"]
    return max((time for time in times if time is not None), key=lambda t: t.ns, default=None)


def _journal_step_time(journal: Journal) -> StepTime | None:
    clean = sorted(_undisturbed_windows(journal))
    steps = sum(count for _, count in clean)
    if steps < MIN_STEPS or len(clean) < MIN_WINDOWS:
        return None
    seen = 0
    for each, count in clean:
        seen += count
        if 2 * seen >= steps:
            return StepTime(each, steps)
    return None


def _undisturbed_windows(journal: Journal) -> Iterator[tuple[int, int]]:
    """Time of a step and number of steps, of every window that no span reaches into."""
    spans = sorted((s.start, s.end if s.end is not None else s.start) for s in journal.spans)
    place, busy_until = 0, 0
    for window in journal.windows:
        while place < len(spans) and spans[place][0] < window.end:
            busy_until = max(busy_until, spans[place][1])
            place += 1
        count = window.last - window.first + 1
        if window.start and busy_until <= window.start:
            yield max(window.end - window.start - window.wait, 0) // count, count
