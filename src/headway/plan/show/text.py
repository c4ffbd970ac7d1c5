"""A plan in a terminal: the rows, and the curve where there is one row."""

from __future__ import annotations

from collections.abc import Sequence

from headway.plan.curve import Point
from headway.plan.show.words import (
    BOUNDS,
    WORDS,
    about,
    at_least,
    minutes,
    notes,
    rate,
    share,
    time,
)
from headway.plan.sweep import Plan, Planned
from headway.report.words import count

HEADINGS = (
    *("nodes", "failures", "interval", "wasted"),
    *("ETT closed", "ETT played", "one in twenty below", "takes"),
)
WIDTH, HEIGHT = 61, 12  # characters of the curve


def text(plan: Plan) -> str:
    """All of it, line by line."""
    lines = [*about(plan), "", *_table([HEADINGS, *map(_cells, plan.rows)])]
    if any(row.range for row in plan.rows):
        lines += ["", *(_uncertain(row) for row in plan.rows if row.range)]
    if len(plan.rows) == 1:
        lines += ["", *_one(plan.rows[0])]
    lines += [f"note: {note}" for note in notes(plan)]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Planned) -> tuple[str, ...]:
    return (
        f"{row.case.nodes:,}",
        rate(row),
        at_least(row, minutes(row.case.every)),
        share(row.at.wasted),
        at_least(row, share(row.closed.ett_percent)),
        f"{at_least(row, share(row.played.shares.ett_percent))} ± {row.played.half:.2f}",
        share(row.played.worst),
        time(row.played.shares.wall),
    )


def _uncertain(row: Planned) -> str:
    low, high = row.range or (0.0, 0.0)
    return (
        f"{count(row.case.nodes, 'node')}: ETT {share(low)} to {share(high)} "
        "over the 95 % interval of the failure rate"
    )


def _one(row: Planned) -> list[str]:
    rows = [("where the time goes", "closed", "played")]
    for part, words in WORDS.items():
        closed, played = row.closed.percent(part), row.played.shares.percent(part)
        rows.append((words, share(closed), share(played)))
    told = [("law", "interval", "wasted", "wasted, exact")]
    for name, at in [*((law.name, law.at) for law in row.laws), ("in force", row.at)]:
        told.append((name, minutes(at.interval), share(at.wasted), share(at.exact)))
    lines = [*_table(rows, left=1), "", *_table(told, left=1)]
    lines[-1] += f"  {BOUNDS[row.bound]}"
    return [*lines, "", *_curve(row.curve, row.at)] if row.curve else lines


def _curve(points: Sequence[Point], at: Point) -> list[str]:
    """Interval to the right on a logarithmic scale, wasted time upwards; `o` is in force."""
    least = min(point.wasted for point in points)
    top = min(max(point.wasted for point in points), 5 * least)
    near = min(range(len(points)), key=lambda place: abs(points[place].interval - at.interval))
    inside = points[0].interval <= at.interval <= points[-1].interval
    lines = [[" "] * WIDTH for _ in range(HEIGHT)]
    for place, point in enumerate(points):
        if point.wasted <= top * (1 + 1e-9):
            level = min(int(HEIGHT * point.wasted / top), HEIGHT - 1)
            lines[HEIGHT - 1 - level][place] = "o" if inside and place == near else "*"
    shown = [f"{share(top):>9} |", *[f"{'':9} |"] * (HEIGHT - 2), f"{share(0.0):>9} |"]
    ends = minutes(points[0].interval), minutes(points[WIDTH // 2].interval)
    scale = f"{ends[0]:<{WIDTH // 2 - 4}}{ends[1]:<{WIDTH // 2 - 4}}"
    return [
        "wasted time of the loop by checkpoint interval",
        *(head + "".join(line) for head, line in zip(shown, lines, strict=True)),
        f"{'':9} +{'-' * WIDTH}",
        f"{'':11}{scale}{minutes(points[-1].interval):>8}",
    ]


def _table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
