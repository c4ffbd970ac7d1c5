"""A waterfall in a terminal: bars of letters, a table, and what fell and rose at each step."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Final

from rich.console import Console
from rich.text import Text

from headway.ledger.model import NS
from headway.report.screen import ascii_only, print_line
from headway.report.waterfall import Bar, Side, Step, Waterfall, color_source
from headway.report.words import bucket_color, duration, one_line, stage_of, truncate_left

TITLES: Final = {
    "start": "Time to Start by stage",
    "lost": "Lost time by bucket, percent of the wall time",
}
BAR_WIDTH: Final = 60  # of the longest bar
CELL_WIDTH: Final = 12  # characters of a column
NAME_WIDTH: Final = 24  # characters of a run's name
MAX_CHANGES: Final = 6  # of a step that are told
MIN_CHANGE: Final = {"start": 0.001, "lost": 0.005}  # a smaller change is none


def print_waterfall(waterfall: Waterfall, console: Console) -> None:
    """Both accounts, one below the other."""
    sides: tuple[Side, ...] = ("start", "lost")
    for side in sides:
        leaves = waterfall.leaves(side)
        letters = dict(zip(leaves, _letters(), strict=False))
        print_line(console, Text(TITLES[side], style="bold"))
        for bar in waterfall.bars:
            print_line(console, _bar_line(waterfall, bar, side, letters, console))
        print_line(
            console,
            _cell_line("", [truncate_left(bar.name, CELL_WIDTH - 1) for bar in waterfall.bars]),
        )
        for leaf in leaves:
            parts = [bar.parts(side).get(leaf, 0.0) for bar in waterfall.bars]
            if max(parts) >= MIN_CHANGE[side]:
                name = f"{letters[leaf]} {stage_of(leaf) if side == 'start' else leaf}"
                print_line(console, _cell_line(name, [format_amount(part, side) for part in parts]))
        for step in waterfall.steps:
            print_line(console, _step_line(step, side))
        print_line(console, Text())


def format_total(bar: Bar, side: Side) -> str:
    """What a bar comes to."""
    if side == "lost":
        return f"{bar.total('lost'):.2f} % lost, ETT {bar.ett_percent:.2f} %"
    return "never trained" if bar.time_to_start is None else format_amount(bar.time_to_start, side)


def format_amount(amount: float, side: Side) -> str:
    """Seconds of a start, or a share of the wall time."""
    return duration(round(amount * NS)) if side == "start" else f"{amount:.2f} %"


def format_change(change: float, side: Side) -> str:
    """The same, with its sign."""
    if side == "lost":
        return f"{change:+.2f} pt"
    return f"{'+' if change > 0 else ''}{duration(round(change * NS))}"


def _letters() -> list[str]:
    return [*ascii_uppercase, *ascii_uppercase.lower()]


def _bar_line(
    waterfall: Waterfall, bar: Bar, side: Side, letters: dict[str, str], console: Console
) -> Text:
    longest = max(one.total(side) for one in waterfall.bars) or 1.0
    line = Text(f"  {_name(bar.name):<{NAME_WIDTH}} ")
    drawn, total = 0, 0.0
    for leaf in letters:
        total += bar.parts(side).get(leaf, 0.0)
        upto = round(BAR_WIDTH * total / longest)
        style = "" if ascii_only(console) else bucket_color(color_source(leaf), dark=True)
        line.append(letters[leaf] * (upto - drawn), style)
        drawn = upto
    return line.append(f" {format_total(bar, side)}")


def _cell_line(name: str, cells: list[str]) -> Text:
    return Text(f"  {name:<31}" + "".join(f"{cell:>{CELL_WIDTH}}" for cell in cells))


def _step_line(step: Step, side: Side) -> Text:
    """Green where less is lost."""
    line = Text(f"  {_name(step.before)} -> {_name(step.after)}: ")
    line.append(format_change(step.total(side), side), _style(step.total(side), side))
    changes = [item for item in step.parts(side).items() if abs(item[1]) >= MIN_CHANGE[side]]
    for place, (leaf, change) in enumerate(changes[:MAX_CHANGES]):
        name = stage_of(leaf) if side == "start" else leaf
        line.append(f"{'; ' if not place else ', '}{name} ")
        line.append(format_change(change, side), _style(change, side))
    more = len(changes) - MAX_CHANGES
    return line.append(f", {more} smaller ones") if more > 0 else line


def _style(change: float, side: Side) -> str:
    return "" if abs(change) < MIN_CHANGE[side] else "green" if change < 0 else "red"


def _name(text: str) -> str:
    return one_line(text, NAME_WIDTH)
