"""A series of runs or releases: stages of each start, lost time, changes; as text and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from string import ascii_uppercase
from typing import Any, Final, Literal

from rich.console import Console
from rich.text import Text

from headway import __version__
from headway.format import count, duration, one_line, truncate_left
from headway.ledger.buckets import BUCKETS, EFFECTIVE, UNKNOWN, stage_of
from headway.ledger.model import Ledger
from headway.report.screen import ascii_only, print_line
from headway.taxonomy import START_STAGES
from headway.units import NS
from headway.web.page import template_environment
from headway.web.theme import bucket_color

START_BUCKETS: Final = tuple(f"start.{stage}" for stage in START_STAGES)
OTHER: Final = "rest"  # of a start, in no stage: evaluations, waits, unknown time
MIN_OTHER_S: Final = 0.05  # a smaller remainder is not shown

Side = Literal["start", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run, or the runs of one release together."""

    name: str
    runs: int
    time_to_start: float | None  # seconds; None: it never trained
    start: Mapping[str, float]  # seconds by stage, in the order of a start
    ett_percent: float
    lost: Mapping[str, float]  # percent of the wall time by bucket; with the ETT they sum to 100

    def parts(self, side: Side) -> Mapping[str, float]:
        """Return the parts of one side."""
        return self.start if side == "start" else self.lost

    def total(self, side: Side) -> float:
        """Return the sum of the parts."""
        return sum(self.parts(side).values())


@dataclass(frozen=True, slots=True)
class Step:
    """The changes from one bar to the next, the largest first."""

    before: str
    after: str
    start: Mapping[str, float]
    lost: Mapping[str, float]

    def parts(self, side: Side) -> Mapping[str, float]:
        """Return the parts of one side."""
        return self.start if side == "start" else self.lost

    def total(self, side: Side) -> float:
        """Return the sum of the changes."""
        return sum(self.parts(side).values())


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Bars in the given order, and the steps between them."""

    bars: tuple[Bar, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The changes between adjacent bars."""
        return tuple(
            Step(a.name, b.name, _change(a.start, b.start), _change(a.lost, b.lost))
            for a, b in pairwise(self.bars)
        )

    def buckets(self, side: Side) -> list[str]:
        """Return the buckets of all bars, in the order of a job."""
        used = {bucket for bar in self.bars for bucket in bar.parts(side)}
        return [bucket for bucket in (*BUCKETS, OTHER) if bucket in used]

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `headway compare --waterfall --json`."""
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
    """Return the bar of one run."""
    started = None if ledger.time_to_start is None else ledger.time_to_start / NS
    seconds = {bucket: ledger.buckets.get(bucket, 0) / NS for bucket in START_BUCKETS}
    lost = {
        bucket: ledger.percent(ns) for bucket, ns in ledger.buckets.items() if bucket != EFFECTIVE
    }
    return Bar(
        name=ledger.run,
        runs=1,
        time_to_start=started,
        start=by_stage(seconds, started),
        ett_percent=ledger.ett_percent,
        lost={bucket: lost[bucket] for bucket in BUCKETS if lost.get(bucket)},
    )


def by_stage(seconds: Mapping[str, float], time_to_start: float | None) -> dict[str, float]:
    """Return the stages of a start in order, and the remainder."""
    stages = {bucket: seconds[bucket] for bucket in START_BUCKETS if seconds.get(bucket)}
    rest = (time_to_start or 0.0) - sum(stages.values())
    return {**stages, OTHER: rest} if rest > MIN_OTHER_S else stages


def color_source(bucket: str) -> str:
    """Return the bucket whose color is used for a part."""
    return UNKNOWN if bucket == OTHER else bucket


def _change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    buckets = dict.fromkeys((*before, *after))
    changes = {bucket: after.get(bucket, 0.0) - before.get(bucket, 0.0) for bucket in buckets}
    ordered = sorted(changes.items(), key=lambda item: -abs(item[1]))
    return {bucket: change for bucket, change in ordered if change}


def with_distinct_names(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Number bars with the same name."""
    times: dict[str, int] = {}
    renamed = []
    for bar in bars:
        times[bar.name] = times.get(bar.name, 0) + 1
        number = times[bar.name]
        renamed.append(bar if number == 1 else replace(bar, name=f"{bar.name} ({number})"))
    return tuple(renamed)


TITLES: Final = {
    "start": "Time to Start by stage",
    "lost": "Lost time by bucket, percent of the wall time",
}
BAR_WIDTH: Final = 60  # characters of the longest bar
CELL_WIDTH: Final = 12  # characters of a column
NAME_WIDTH: Final = 24  # characters of a run's name
MAX_CHANGES: Final = 6  # shown per step
MIN_CHANGE: Final = {"start": 0.001, "lost": 0.005}  # smaller changes are not shown


def print_waterfall(waterfall: Waterfall, console: Console) -> None:
    """Print both sides, one below the other."""
    sides: tuple[Side, ...] = ("start", "lost")
    for side in sides:
        buckets = waterfall.buckets(side)
        letters = dict(zip(buckets, _letters(), strict=False))
        print_line(console, Text(TITLES[side], style="bold"))
        for bar in waterfall.bars:
            print_line(console, _bar_line(waterfall, bar, side, letters, console))
        print_line(
            console,
            _cell_line("", [truncate_left(bar.name, CELL_WIDTH - 1) for bar in waterfall.bars]),
        )
        for bucket in buckets:
            parts = [bar.parts(side).get(bucket, 0.0) for bar in waterfall.bars]
            if max(parts) >= MIN_CHANGE[side]:
                name = f"{letters[bucket]} {stage_of(bucket) if side == 'start' else bucket}"
                print_line(console, _cell_line(name, [format_amount(part, side) for part in parts]))
        for step in waterfall.steps:
            print_line(console, _step_line(step, side))
        print_line(console, Text())


def format_total(bar: Bar, side: Side) -> str:
    """Format the total of a bar."""
    if side == "lost":
        return f"{bar.total('lost'):.2f} % lost, ETT {bar.ett_percent:.2f} %"
    return "never trained" if bar.time_to_start is None else format_amount(bar.time_to_start, side)


def format_amount(amount: float, side: Side) -> str:
    """Format seconds of a start, or a share of the wall time."""
    return duration(round(amount * NS)) if side == "start" else f"{amount:.2f} %"


def format_change(change: float, side: Side) -> str:
    """Format a change with its sign."""
    if side == "lost":
        return f"{change:+.2f} pt"
    return f"{'+' if change > 0 else ''}{duration(round(change * NS))}"


def _letters() -> list[str]:
    return [*ascii_uppercase, *ascii_uppercase.lower()]


def _bar_line(
    waterfall: Waterfall, bar: Bar, side: Side, letters: dict[str, str], console: Console
) -> Text:
    longest = max(other.total(side) for other in waterfall.bars) or 1.0
    line = Text(f"  {_name(bar.name):<{NAME_WIDTH}} ")
    drawn, total = 0, 0.0
    for bucket in letters:
        total += bar.parts(side).get(bucket, 0.0)
        upto = round(BAR_WIDTH * total / longest)
        style = "" if ascii_only(console) else bucket_color(color_source(bucket), dark=True)
        line.append(letters[bucket] * (upto - drawn), style)
        drawn = upto
    return line.append(f" {format_total(bar, side)}")


def _cell_line(name: str, cells: list[str]) -> Text:
    return Text(f"  {name:<31}" + "".join(f"{cell:>{CELL_WIDTH}}" for cell in cells))


def _step_line(step: Step, side: Side) -> Text:
    """Return the line on a step; decreases are green."""
    line = Text(f"  {_name(step.before)} -> {_name(step.after)}: ")
    line.append(format_change(step.total(side), side), _style(step.total(side), side))
    changes = [item for item in step.parts(side).items() if abs(item[1]) >= MIN_CHANGE[side]]
    for place, (bucket, change) in enumerate(changes[:MAX_CHANGES]):
        name = stage_of(bucket) if side == "start" else bucket
        line.append(f"{'; ' if not place else ', '}{name} ")
        line.append(format_change(change, side), _style(change, side))
    more = len(changes) - MAX_CHANGES
    return line.append(f", {more} smaller") if more > 0 else line


def _style(change: float, side: Side) -> str:
    return "" if abs(change) < MIN_CHANGE[side] else "green" if change < 0 else "red"


def _name(text: str) -> str:
    return one_line(text, NAME_WIDTH)


def waterfall_page(waterfall: Waterfall) -> str:
    """Return the HTML page; names of runs are escaped."""
    sides: tuple[Side, ...] = ("start", "lost")
    return (
        template_environment()
        .get_template("waterfall.html")
        .render(
            version=__version__,
            bars=[one_line(bar.name, 100) for bar in waterfall.bars],
            charts=[_html_chart(waterfall, side) for side in sides],
        )
    )


def _html_chart(waterfall: Waterfall, side: Side) -> dict[str, Any]:
    buckets = waterfall.buckets(side)
    longest = max(bar.total(side) for bar in waterfall.bars) or 1.0
    return {
        "title": TITLES[side],
        "bars": [_html_bar(bar, side, buckets, longest) for bar in waterfall.bars],
        "leaves": [
            {
                "name": stage_of(bucket) if side == "start" else bucket,
                "color": _html_color(bucket),
                "cells": [
                    format_amount(bar.parts(side).get(bucket, 0.0), side) for bar in waterfall.bars
                ],
            }
            for bucket in buckets
        ],
        "steps": [
            {
                "name": f"{one_line(step.before, 60)} → {one_line(step.after, 60)}",
                "total": format_change(step.total(side), side),
                "fell": step.total(side) < 0,
                "changes": [
                    {
                        "name": stage_of(bucket) if side == "start" else bucket,
                        "text": format_change(change, side),
                        "fell": change < 0,
                    }
                    for bucket, change in step.parts(side).items()
                    if abs(change) >= MIN_CHANGE[side]
                ],
            }
            for step in waterfall.steps
        ],
    }


def _html_bar(bar: Bar, side: Side, buckets: list[str], longest: float) -> dict[str, Any]:
    parts = bar.parts(side)
    return {
        "name": one_line(bar.name, 100),
        "runs": count(bar.runs, "run"),
        "total": format_total(bar, side),
        "parts": [
            {
                "width": 100 * parts[bucket] / longest,
                "color": _html_color(bucket),
                "text": f"{bucket}: {format_amount(parts[bucket], side)}",
            }
            for bucket in buckets
            if bucket in parts
        ],
    }


def _html_color(bucket: str) -> str:
    return bucket_color(color_source(bucket), dark=False)
