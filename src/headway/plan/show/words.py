"""How the figures of a plan are written."""

from __future__ import annotations

import math

from headway.ledger.model import NS
from headway.plan.sweep import Plan, PlanRow
from headway.report.words import count, duration

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
        f"first start {format_time(case.first)} (compile {format_time(case.compile)}); after a failure "
        f"{format_time(case.again)} (wait for machines {format_time(case.requeue)}, compile "
        f"{format_time(case.compile_again)})",
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
        f"{count(row.case.nodes, 'node')} at {format_interval(row.case.every)}: {row.played.given_up:,} of "
        f"{row.played.trials:,} trials made so little headway that they were given up"
        for row in plan.rows
        if row.played.given_up
    ]
