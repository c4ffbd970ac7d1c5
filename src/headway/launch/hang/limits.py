"""How long a rank may go without a step, from the timing of the job itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headway.stats import percentile

FLOOR_S = 120.0  # a shorter silence is never a hang: what follows the steps happens only once
STOPPED_S = 3.0  # the same for a process that a signal has stopped
SPAN_FLOOR_S = 120.0  # inside a save, a compile and similar spans
UNSEEN_S = 600.0  # for the first span of a kind, of which nothing is known yet
START_S = 300.0  # before the first step, if there is no earlier attempt
OVER_GAPS = 5.0  # times the 99th percentile of the time between steps
OVER_LONGEST = 2.0  # times the longest time between steps so far
OVER_SPANS = 3.0
# Spans in which a healthy rank may make no step for long.
LONG_SPANS = frozenset(
    {
        "checkpoint_save",
        "checkpoint_load",
        "compile",
        "compile_autotune",
        "compile_cache",
        "compile_import",
        "compile_turn",
        "evaluation",
        "publish",
        "import",
        "data_wait",
        "data_iter",
        "process_group_init",
    }
)


@dataclass
class StepTimingStats:
    """What is known about the step times of the job, over its attempts."""

    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    longest_gap: float = 0.0
    longest: dict[str, float] = field(default_factory=dict)  # seconds, by name of the span
    longest_start: float = 0.0  # seconds; the longest start up to a first step
    floor: float = FLOOR_S

    def add_gap(self, seconds: float, steps: int = 1) -> None:
        """Add the time from one step to the next."""
        self.gaps.append(seconds / max(steps, 1))
        if steps == 1:
            self.longest_gap = max(self.longest_gap, seconds)

    def add_spans(self, longest: Mapping[str, int]) -> None:
        """Add the longest span of each kind of a rank."""
        for name, ns in longest.items():
            self.longest[name] = max(self.longest.get(name, 0.0), ns / 1e9)

    def limit(self, stepped: bool, inside: Iterable[str]) -> float:
        """Seconds of silence that are still healthy for a rank inside these spans."""
        kinds = [name for name in inside if name in LONG_SPANS]
        limits = [self._between_steps() if stepped else self._before_steps()]
        for kind in kinds:
            longest_s = self.longest.get(kind)
            limits.append(
                UNSEEN_S if longest_s is None else max(SPAN_FLOOR_S, OVER_SPANS * longest_s)
            )
        return max(limits)

    def _between_steps(self) -> float:
        if not self.gaps:
            return START_S
        p99 = percentile(self.gaps, 0.99)
        return max(self.floor, OVER_GAPS * p99, OVER_LONGEST * self.longest_gap)

    def _before_steps(self) -> float:
        if not self.longest_start:
            return START_S
        return max(SPAN_FLOOR_S, OVER_SPANS * self.longest_start)
