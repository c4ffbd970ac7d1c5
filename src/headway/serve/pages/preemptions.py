"""Preemptions, each with its cost."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries import pages
from headway.fleet.queries.queries import build_query
from headway.serve.pages.panel import Card, Column, Page, Panel, cards, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source

ROWS_PER_PAGE = 50


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    row = _totals(source, query)
    hours = row.get("accelerator_hours") or 0.0
    rolled_back = row.get("rolled_back_accelerator_hours") or 0.0
    total_hours = source.single_row("ett", query).get("accelerator_hours") or 0.0
    return cards(
        Card("Preemptions", row.get("failures_all", 0), "count", f"of {row.get('jobs', 0):,} runs"),
        Card(
            "Cost",
            hours,
            "hours",
            f"{100 * hours / total_hours if total_hours else 0:.2f} % of all",
        ),
        Card("Rolled back", rolled_back, "hours", "accelerator-hours of training"),
        Card("Recovering", hours - rolled_back, "hours", "accelerator-hours"),
        Card("Time to Recover", row.get("ttr_p50_s"), "seconds", "median"),
        Card("Never recovered", row.get("never_recovered", 0), "count", "preemptions"),
    )


def _totals(source: Source, query: PageQuery) -> dict[str, Any]:
    rows = source.rows(build_query("failures", source.filter_for(query)), query)
    return next((row for row in rows if row["category"] == pages.PREEMPTION), {})


def over_time(source: Source, query: PageQuery) -> dict[str, Any]:
    period = source.period(query)
    failures = source.rows(
        build_query("failures", source.filter_for(query, period, "category")), query
    )
    rows = [
        {**row, "recovering": row["accelerator_hours"] - row["rolled_back_accelerator_hours"]}
        for row in failures
        if row["category"] == pages.PREEMPTION
    ]
    columns = [
        Column(period, period, "period"),
        Column("rolled_back_accelerator_hours", "rolled back", "hours"),
        Column("recovering", "recovering", "hours"),
        Column("failures_all", "preemptions", "count"),
        Column("jobs", "runs", "count"),
    ]
    parts = ["rolled_back_accelerator_hours", "recovering"]
    return table(columns, rows, plot={"kind": "stack", "x": period, "parts": parts})


def preemption_list(source: Source, query: PageQuery) -> dict[str, Any]:
    filter_, skip = source.filter_for(query), (query.page - 1) * ROWS_PER_PAGE
    rows = source.rows(pages.preemption_rows(filter_, skip=skip, limit=ROWS_PER_PAGE), query)
    columns = [
        Column("at", "when", "time"),
        Column("run", "run", "run"),
        Column("team", "team"),
        Column("model", "model"),
        Column("attempt", "attempt", "count"),
        Column("accelerators", "accelerators", "count"),
        Column("lost_s", "rolled back", "seconds"),
        Column("time_to_recover_s", "Time to Recover", "seconds"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("decision", "decision"),
        Column("run_id", "id", "id"),
    ]
    total = _totals(source, query).get("failures_all", 0)
    return table(columns, rows, paging={"page": query.page, "rows": ROWS_PER_PAGE, "of": total})


PREEMPTIONS_PAGE = Page(
    "/preemptions",
    "Preemptions",
    "Preemptions by the scheduler or the cloud, and their cost.",
    (
        Panel("preempted-headline", "Headline", "", "cards", headline),
        Panel(
            "preempted-time",
            "Over time",
            "Accelerator-hours rolled back and spent on recovery.",
            "chart",
            over_time,
        ),
        Panel("preempted-ledger", "Preemptions", "Newest first.", "table", preemption_list),
    ),
    ("page",),
)
