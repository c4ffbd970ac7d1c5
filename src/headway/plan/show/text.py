"""A plan in a terminal: the rows, and the curve where there is one row."""

from __future__ import annotations

from collections.abc import Sequence

from headway.plan.curve import Point
from headway.plan.show.words import (
    INTERVAL_SOURCES,
    PART_LABELS,
    describe_job,
    format_bound,
    format_interval,
    format_percent,
    format_rate,
    format_time,
    plan_notes,
)
from headway.plan.sweep import Plan, PlanRow
from headway.report.words import count

HEADINGS = (
    *("nodes", "failures", "interval", "wasted"),
    *("ETT closed", "ETT played", "one in twenty below", "takes"),
)
WIDTH, HEIGHT = 61, 12  # characters of the curve


def terminal_text(plan: Plan) -> str:
    """All of it, line by line."""
    lines = [*describe_job(plan), "", *_table([HEADINGS, *map(_cells, plan.rows)])]
    if any(row.range for row in plan.rows):
        lines += ["", *(_ett_range_line(row) for row in plan.rows if row.range)]
    if len(plan.rows) == 1:
        lines += ["", *_row_details(plan.rows[0])]
    lines += [f"note: {note}" for note in plan_notes(plan)]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: PlanRow) -> tuple[str, ...]:
    return (
        f"{row.case.nodes:,}",
        format_rate(row),
        format_bound(row, format_interval(row.case.every)),
        format_percent(row.at.wasted),
        format_bound(row, format_percent(row.closed.ett_percent)),
        f"{format_bound(row, format_percent(row.played.shares.ett_percent))} ± {row.played.half:.2f}",
        format_percent(row.played.worst),
        format_time(row.played.shares.wall),
    )


def _ett_range_line(row: PlanRow) -> str:
    low, high = row.range or (0.0, 0.0)
    return (
        f"{count(row.case.nodes, 'node')}: ETT {format_percent(low)} to {format_percent(high)} "
        "over the 95 % interval of the failure rate"
    )


def _row_details(row: PlanRow) -> list[str]:
    rows = [("where the time goes", "closed", "played")]
    for part, words in PART_LABELS.items():
        closed, played = row.closed.percent(part), row.played.shares.percent(part)
        rows.append((words, format_percent(closed), format_percent(played)))
    told = [("law", "interval", "wasted", "wasted, exact")]
    for name, at in [*((law.name, law.at) for law in row.laws), ("in force", row.at)]:
        told.append(
            (
                name,
                format_interval(at.interval),
                format_percent(at.wasted),
                format_percent(at.exact),
            )
        )
    lines = [*_table(rows, left=1), "", *_table(told, left=1)]
    lines[-1] += f"  {INTERVAL_SOURCES[row.bound]}"
    return [*lines, "", *_plot_curve(row.curve, row.at)] if row.curve else lines


def _plot_curve(points: Sequence[Point], at: Point) -> list[str]:
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
    shown = [
        f"{format_percent(top):>9} |",
        *[f"{'':9} |"] * (HEIGHT - 2),
        f"{format_percent(0.0):>9} |",
    ]
    ends = format_interval(points[0].interval), format_interval(points[WIDTH // 2].interval)
    scale = f"{ends[0]:<{WIDTH // 2 - 4}}{ends[1]:<{WIDTH // 2 - 4}}"
    return [
        "wasted time of the loop by checkpoint interval",
        *(head + "".join(line) for head, line in zip(shown, lines, strict=True)),
        f"{'':9} +{'-' * WIDTH}",
        f"{'':11}{scale}{format_interval(points[-1].interval):>8}",
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
