"""Render a plan for the terminal and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from headway.format import count, duration
from headway.plan.analytic import Point
from headway.plan.plan import Plan, PlanRow, point_to_dict
from headway.plan.simulate import GIVE_UP_FACTOR
from headway.units import NS

INTERVAL_SOURCES = {
    "given": "as given",
    "run": "recommended by the Checkpointer of the run",
    "law": "wastes the least time",
    "durable": "limited by the time until a save is durable",
    "length": "limited by the length of the job",
}
PART_LABELS = {
    "start": "first start",
    "saves": "blocked by saves",
    "lost": "trained, then rolled back",
    "recover": "recovery from failures",
}
HEADINGS = (
    *("nodes", "failures", "interval", "wasted"),
    *("ETT (analytic)", "ETT (simulated)", "5th percentile", "wall time"),
)
WIDTH, HEIGHT = 61, 12  # of the curve, in characters


def format_time(seconds: float) -> str:
    """For example `15 m 29 s`."""
    return duration(round(seconds * NS))


def format_interval(seconds: float) -> str:
    """For example `15.5 min`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    hours = seconds >= 3 * 3600
    return f"{round(seconds / (3600 if hours else 60), 1):g} {'h' if hours else 'min'}"


def format_percent(percent: float) -> str:
    """Two decimals, because the compared values differ by little."""
    return f"{percent:.2f} %"


def format_rate(row: PlanRow) -> str:
    """For example `3 per day`."""
    return f"{'<' if row.is_bound else ''}{row.job.failures_per_day:.3g} per day"


def format_bound(row: PlanRow, text: str) -> str:
    """Prefix the text with `>` if the row shows a lower bound."""
    return f">{text}" if row.is_bound else text


def describe_job(plan: Plan) -> list[str]:
    job = plan.rows[0].job
    rate = "less often than every" if plan.rows[0].is_bound else "every"
    node = (
        "no node fails" if math.isinf(job.mtbf) else f"a node fails {rate} {format_time(job.mtbf)}"
    )
    lines = [
        f"{format_time(job.length)} of training; {node}; a save costs {format_time(job.block)}"
        + (f" and is durable {format_time(job.durable)} later" if job.durable else ""),
        f"first start {format_time(job.startup_s)} (compile {format_time(job.compile)}); "
        f"after a failure {format_time(job.recovery_s)} "
        f"(wait for machines {format_time(job.requeue)}, "
        f"compile {format_time(job.compile_again)})",
    ]
    return lines if plan.measured is None else [*lines, _describe_source(plan)]


def _describe_source(plan: Plan) -> str:
    measured = plan.measured
    assert measured is not None
    text = f"measured by {measured.source}: {count(measured.runs, 'run')}, "
    text += f"{count(measured.failures, 'failure')} in {measured.node_hours:,.3g} node-hours"
    if measured.is_bound:
        text += ", so the failure rate is not known: "
        text += f"below {measured.failures_high:.3g} per node and day (95 %)"
    elif measured.failures_a_day is not None:
        low, high = measured.failures_low or 0.0, measured.failures_high or 0.0
        text += f", {measured.failures_a_day:.3g} per node and day ({low:.2g} to {high:.2g})"
    return text


def plan_notes(plan: Plan) -> list[str]:
    bound = [
        "the failure rate is an upper bound, so ETT and interval are lower bounds; "
        "give --mtbf or --failures-a-day"
    ]
    return [*(bound if any(row.is_bound for row in plan.rows) else ()), *_unfinished_trials(plan)]


def _unfinished_trials(plan: Plan) -> list[str]:
    return [
        f"{count(row.job.nodes, 'node')} at {format_interval(row.job.interval_in_use)}: "
        f"{row.simulated.unfinished:,} of {row.simulated.trials:,} trials were aborted because "
        f"they took {GIVE_UP_FACTOR:g} times as long as the job"
        for row in plan.rows
        if row.simulated.unfinished
    ]


def terminal_text(plan: Plan) -> str:
    lines = [*describe_job(plan), "", *_table([HEADINGS, *map(_cells, plan.rows)])]
    if any(row.ett_range for row in plan.rows):
        lines += ["", *(_ett_range_line(row) for row in plan.rows if row.ett_range)]
    if len(plan.rows) == 1:
        lines += ["", *_row_details(plan.rows[0])]
    lines += [f"note: {note}" for note in plan_notes(plan)]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: PlanRow) -> tuple[str, ...]:
    simulated = format_bound(row, format_percent(row.simulated.shares.ett_percent))
    return (
        f"{row.job.nodes:,}",
        format_rate(row),
        format_bound(row, format_interval(row.job.interval_in_use)),
        format_percent(row.point_in_use.wasted),
        format_bound(row, format_percent(row.analytic.ett_percent)),
        f"{simulated} ± {row.simulated.ci95:.2f}",
        format_percent(row.simulated.p5),
        format_time(row.simulated.shares.wall),
    )


def _ett_range_line(row: PlanRow) -> str:
    low, high = row.ett_range or (0.0, 0.0)
    return (
        f"{count(row.job.nodes, 'node')}: ETT {format_percent(low)} to {format_percent(high)} "
        "over the 95 % interval of the failure rate"
    )


def _row_details(row: PlanRow) -> list[str]:
    rows = [("share of the wall time", "analytic", "simulated")]
    for part, label in PART_LABELS.items():
        analytic, simulated = row.analytic.percent(part), row.simulated.shares.percent(part)
        rows.append((label, format_percent(analytic), format_percent(simulated)))
    intervals = [("formula", "interval", "wasted", "wasted (exact)")]
    for name, at in [
        *((formula.name, formula.point) for formula in row.formulas),
        ("in use", row.point_in_use),
    ]:
        intervals.append(
            (
                name,
                format_interval(at.interval),
                format_percent(at.wasted),
                format_percent(at.exact),
            )
        )
    lines = [*_table(rows, left=1), "", *_table(intervals, left=1)]
    lines[-1] += f"  {INTERVAL_SOURCES[row.interval_source]}"
    return [*lines, "", *_plot_curve(row.curve, row.point_in_use)] if row.curve else lines


def _plot_curve(points: Sequence[Point], at: Point) -> list[str]:
    """Wasted time by interval, on a logarithmic axis; `o` marks the interval in use."""
    lowest = min(point.wasted for point in points)
    top = min(max(point.wasted for point in points), 5 * lowest)
    nearest = min(range(len(points)), key=lambda place: abs(points[place].interval - at.interval))
    inside = points[0].interval <= at.interval <= points[-1].interval
    lines = [[" "] * WIDTH for _ in range(HEIGHT)]
    for place, point in enumerate(points):
        if point.wasted <= top * (1 + 1e-9):
            level = min(int(HEIGHT * point.wasted / top), HEIGHT - 1)
            lines[HEIGHT - 1 - level][place] = "o" if inside and place == nearest else "*"
    axis = [
        f"{format_percent(top):>9} |",
        *[f"{'':9} |"] * (HEIGHT - 2),
        f"{format_percent(0.0):>9} |",
    ]
    ends = format_interval(points[0].interval), format_interval(points[WIDTH // 2].interval)
    scale = f"{ends[0]:<{WIDTH // 2 - 4}}{ends[1]:<{WIDTH // 2 - 4}}"
    return [
        "time wasted in the loop by checkpoint interval",
        *(head + "".join(line) for head, line in zip(axis, lines, strict=True)),
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
    """The curves; the interval in use is a row of its own, marked in the last column."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["nodes", *point_to_dict(plan.rows[0].point_in_use), "in_force"])
    for row in plan.rows:
        for point in row.curve:
            writer.writerow([row.job.nodes, *point_to_dict(point).values(), 0])
        writer.writerow([row.job.nodes, *point_to_dict(row.point_in_use).values(), 1])
    return buffer.getvalue()
