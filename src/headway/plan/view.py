"""Render a plan for the terminal and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from headway.format import count, duration
from headway.plan.analytic import Point
from headway.plan.plan import Plan, PlanRow, point_to_dict
from headway.units import NS

INTERVAL_SOURCES = {
    "given": "as given",
    "run": "recommended by the Checkpointer of the run",
    "law": "loses least",
    "durable": "a save is durable no sooner",
    "length": "as long as the job",
}
PART_LABELS = {
    "start": "first start",
    "saves": "training stood for saves",
    "lost": "trained, then rolled back",
    "recover": "from failures to training again",
}


def format_time(seconds: float) -> str:
    """`15 m 29 s`."""
    return duration(round(seconds * NS))


def format_interval(seconds: float) -> str:
    """An interval, short: `15.5 min`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    hours = seconds >= 3 * 3600
    return f"{round(seconds / (3600 if hours else 60), 1):g} {'h' if hours else 'min'}"


def format_percent(percent: float) -> str:
    """Two decimals: what is compared differs by little."""
    return f"{percent:.2f} %"


def format_rate(row: PlanRow) -> str:
    """`3.00 a day`."""
    return f"{'<' if row.is_bound else ''}{row.case.a_day:.3g} a day"


def format_bound(row: PlanRow, text: str) -> str:
    """What is better the less often nodes fail: `>15 min`."""
    return f">{text}" if row.is_bound else text


def describe_job(plan: Plan) -> list[str]:
    """The job in a few lines."""
    case = plan.rows[0].case
    often = "less often than every" if plan.rows[0].is_bound else "every"
    node = (
        "no node fails"
        if math.isinf(case.mtbf)
        else f"a node fails {often} {format_time(case.mtbf)}"
    )
    lines = [
        f"{format_time(case.length)} of training; {node}; a save costs {format_time(case.block)}"
        + (f" and is durable {format_time(case.durable)} later" if case.durable else ""),
        f"first start {format_time(case.first)} (compile {format_time(case.compile)}); "
        f"after a failure {format_time(case.again)} "
        f"(wait for machines {format_time(case.requeue)}, "
        f"compile {format_time(case.compile_again)})",
    ]
    return lines if plan.measured is None else [*lines, _describe_source(plan)]


def _describe_source(plan: Plan) -> str:
    seen = plan.measured
    assert seen is not None
    told = (
        f"measured by {seen.source}: {count(seen.runs, 'run')}, {count(seen.failures, 'failure')}"
    )
    told += f" in {seen.node_hours:,.3g} node-hours"
    if seen.is_bound:
        told += ", so how often nodes fail is not known: "
        told += f"below {seen.failures_high:.3g} a node and day (95 %)"
    elif seen.failures_a_day is not None:
        low, high = seen.failures_low or 0.0, seen.failures_high or 0.0
        told += f", {seen.failures_a_day:.3g} a node and day ({low:.2g} to {high:.2g})"
    return told


def plan_notes(plan: Plan) -> list[str]:
    """What to know of the figures."""
    bound = [
        "the failure rate is an upper bound, so that ETT and interval are lower bounds; "
        "give --mtbf or --failures-a-day"
    ]
    return [*(bound if any(row.is_bound for row in plan.rows) else ()), *_unfinished_trials(plan)]


def _unfinished_trials(plan: Plan) -> list[str]:
    return [
        f"{count(row.case.nodes, 'node')} at {format_interval(row.case.every)}: "
        f"{row.played.given_up:,} of {row.played.trials:,} trials made so little headway that "
        "they were given up"
        for row in plan.rows
        if row.played.given_up
    ]


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
    played = format_bound(row, format_percent(row.played.shares.ett_percent))
    return (
        f"{row.case.nodes:,}",
        format_rate(row),
        format_bound(row, format_interval(row.case.every)),
        format_percent(row.at.wasted),
        format_bound(row, format_percent(row.closed.ett_percent)),
        f"{played} ± {row.played.half:.2f}",
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


def csv_text(plan: Plan) -> str:
    """The interval in force is a line of its own, marked in the last column."""
    made = io.StringIO()
    out = csv.writer(made, lineterminator="\n")
    out.writerow(["nodes", *point_to_dict(plan.rows[0].at), "in_force"])
    for row in plan.rows:
        for one in row.curve:
            out.writerow([row.case.nodes, *point_to_dict(one).values(), 0])
        out.writerow([row.case.nodes, *point_to_dict(row.at).values(), 1])
    return made.getvalue()
