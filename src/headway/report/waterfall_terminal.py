"""A waterfall in a terminal: bars of letters, a table, and what fell and rose at each step."""

from __future__ import annotations

from string import ascii_uppercase
from typing import Final

from rich.console import Console
from rich.text import Text

from headway.ledger.model import NS
from headway.report.screen import plain, say
from headway.report.waterfall import Bar, Side, Step, Waterfall, shade
from headway.report.words import colour, duration, ending, one_line, short

TITLES: Final = {
    "start": "Time to Start by stage",
    "lost": "Lost time by bucket, percent of the wall time",
}
WIDTH: Final = 60  # of the longest bar
CELL: Final = 12  # characters of a column
NAME: Final = 24  # characters of a run's name
CHANGES: Final = 6  # of a step that are told
LEAST: Final = {"start": 0.001, "lost": 0.005}  # a smaller change is none


def show(waterfall: Waterfall, console: Console) -> None:
    """Both accounts, one below the other."""
    sides: tuple[Side, ...] = ("start", "lost")
    for side in sides:
        leaves = waterfall.leaves(side)
        letters = dict(zip(leaves, _letters(), strict=False))
        say(console, Text(TITLES[side], style="bold"))
        for bar in waterfall.bars:
            say(console, _bar(waterfall, bar, side, letters, console))
        say(console, _row("", [ending(bar.name, CELL - 1) for bar in waterfall.bars]))
        for leaf in leaves:
            parts = [bar.parts(side).get(leaf, 0.0) for bar in waterfall.bars]
            if max(parts) >= LEAST[side]:
                name = f"{letters[leaf]} {short(leaf) if side == 'start' else leaf}"
                say(console, _row(name, [value(part, side) for part in parts]))
        for step in waterfall.steps:
            say(console, _step(step, side))
        say(console, Text())


def whole(bar: Bar, side: Side) -> str:
    """What a bar comes to."""
    if side == "lost":
        return f"{bar.total('lost'):.2f} % lost, ETT {bar.ett_percent:.2f} %"
    return "never trained" if bar.time_to_start is None else value(bar.time_to_start, side)


def value(amount: float, side: Side) -> str:
    """Seconds of a start, or a share of the wall time."""
    return duration(round(amount * NS)) if side == "start" else f"{amount:.2f} %"


def difference(change: float, side: Side) -> str:
    """The same, with its sign."""
    if side == "lost":
        return f"{change:+.2f} pt"
    return f"{'+' if change > 0 else ''}{duration(round(change * NS))}"


def _letters() -> list[str]:
    return [*ascii_uppercase, *ascii_uppercase.lower()]


def _bar(
    waterfall: Waterfall, bar: Bar, side: Side, letters: dict[str, str], console: Console
) -> Text:
    longest = max(one.total(side) for one in waterfall.bars) or 1.0
    line = Text(f"  {_name(bar.name):<{NAME}} ")
    drawn, total = 0, 0.0
    for leaf in letters:
        total += bar.parts(side).get(leaf, 0.0)
        upto = round(WIDTH * total / longest)
        style = "" if plain(console) else colour(shade(leaf), dark=True)
        line.append(letters[leaf] * (upto - drawn), style)
        drawn = upto
    return line.append(f" {whole(bar, side)}")


def _row(name: str, cells: list[str]) -> Text:
    return Text(f"  {name:<31}" + "".join(f"{cell:>{CELL}}" for cell in cells))


def _step(step: Step, side: Side) -> Text:
    """Green where less is lost."""
    line = Text(f"  {_name(step.before)} -> {_name(step.after)}: ")
    line.append(difference(step.total(side), side), _style(step.total(side), side))
    changes = [item for item in step.parts(side).items() if abs(item[1]) >= LEAST[side]]
    for place, (leaf, change) in enumerate(changes[:CHANGES]):
        name = short(leaf) if side == "start" else leaf
        line.append(f"{'; ' if not place else ', '}{name} ")
        line.append(difference(change, side), _style(change, side))
    more = len(changes) - CHANGES
    return line.append(f", {more} smaller ones") if more > 0 else line


def _style(change: float, side: Side) -> str:
    return "" if abs(change) < LEAST[side] else "green" if change < 0 else "red"


def _name(text: str) -> str:
    return one_line(text, NAME)
