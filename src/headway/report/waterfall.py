"""A series of runs or releases: what each start was made of, what was lost, and what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal

from headway.ledger.leaves import BUCKETS, EFFECTIVE, START_STAGES, UNKNOWN
from headway.ledger.model import NS, Ledger

START_BUCKETS: Final = tuple(f"start.{stage}" for stage in START_STAGES)
OTHER: Final = "rest"  # of a start that no stage has: evaluations, waits, what is not known
MIN_OTHER_S: Final = 0.05  # seconds of a rest that is shown

Side = Literal["start", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run, or the runs of one release together."""

    name: str
    runs: int
    time_to_start: float | None  # seconds; None: it never trained
    start: Mapping[str, float]  # seconds by stage, in the order of a start
    ett_percent: float
    lost: Mapping[str, float]  # percent of the wall time by leaf; they and the ETT sum to 100

    def parts(self, side: Side) -> Mapping[str, float]:
        """One of the two accounts."""
        return self.start if side == "start" else self.lost

    def total(self, side: Side) -> float:
        """What the parts sum to."""
        return sum(self.parts(side).values())


@dataclass(frozen=True, slots=True)
class Step:
    """What changed from one bar to the next; the largest change first."""

    before: str
    after: str
    start: Mapping[str, float]
    lost: Mapping[str, float]

    def parts(self, side: Side) -> Mapping[str, float]:
        """One of the two accounts."""
        return self.start if side == "start" else self.lost

    def total(self, side: Side) -> float:
        """What the changes sum to."""
        return sum(self.parts(side).values())


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The bars in the order in which they were given, and the steps between them."""

    bars: tuple[Bar, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """One less than bars."""
        return tuple(
            Step(a.name, b.name, _change(a.start, b.start), _change(a.lost, b.lost))
            for a, b in pairwise(self.bars)
        )

    def leaves(self, side: Side) -> list[str]:
        """All that any bar has, in the order of a job."""
        used = {leaf for bar in self.bars for leaf in bar.parts(side)}
        return [leaf for leaf in (*BUCKETS, OTHER) if leaf in used]

    def to_dict(self) -> dict[str, Any]:
        """For `headway compare --waterfall --json`."""
        return {
            "schema": 1,
            "bars": [
                {
                    "name": bar.name,
                    "runs": bar.runs,
                    "time_to_start_s": bar.time_to_start,
                    "start_s": dict(bar.start),
                    "ett_percent": bar.ett_percent,
                    "lost_percent": dict(bar.lost),
                }
                for bar in self.bars
            ],
            "steps": [
                {
                    "before": step.before,
                    "after": step.after,
                    "start_s": dict(step.start),
                    "lost_points": dict(step.lost),
                }
                for step in self.steps
            ],
        }


def bar_of_run(ledger: Ledger) -> Bar:
    """Of one run."""
    started = None if ledger.time_to_start is None else ledger.time_to_start / NS
    seconds = {leaf: ledger.buckets.get(leaf, 0) / NS for leaf in START_BUCKETS}
    lost = {leaf: ledger.percent(ns) for leaf, ns in ledger.buckets.items() if leaf != EFFECTIVE}
    return Bar(
        name=ledger.run,
        runs=1,
        time_to_start=started,
        start=by_stage(seconds, started),
        ett_percent=ledger.ett_percent,
        lost={leaf: lost[leaf] for leaf in BUCKETS if lost.get(leaf)},
    )


def by_stage(seconds: Mapping[str, float], time_to_start: float | None) -> dict[str, float]:
    """The stages of a start in their order, and the rest of it."""
    found = {leaf: seconds[leaf] for leaf in START_BUCKETS if seconds.get(leaf)}
    rest = (time_to_start or 0.0) - sum(found.values())
    return {**found, OTHER: rest} if rest > MIN_OTHER_S else found


def color_source(leaf: str) -> str:
    """The leaf whose colour it has."""
    return UNKNOWN if leaf == OTHER else leaf


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    leaves = dict.fromkeys((*before, *after))
    found = {leaf: after.get(leaf, 0.0) - before.get(leaf, 0.0) for leaf in leaves}
    ordered = sorted(found.items(), key=lambda item: -abs(item[1]))
    return {leaf: change for leaf, change in ordered if change}


def with_distinct_names(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Two runs of the same name are told apart by a number."""
    seen: dict[str, int] = {}
    found = []
    for one in bars:
        seen[one.name] = seen.get(one.name, 0) + 1
        number = seen[one.name]
        found.append(one if number == 1 else replace(one, name=f"{one.name} ({number})"))
    return tuple(found)
