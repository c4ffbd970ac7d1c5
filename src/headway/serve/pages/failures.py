"""Failures: by node, over time, by category."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries.queries import build_query
from headway.serve.pages import alerts
from headway.serve.pages.panel import Column, Page, Panel, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source

MAX_NODES = 30  # in the chart; the table has more
MAX_ROWS = 400


def nodes(source: Source, query: PageQuery) -> dict[str, Any]:
    """A cell for each node and category; the node with most failures first."""
    filter_ = source.filter_for(query, "host", "category")
    rows = [row for row in source.rows(build_query("failures", filter_), query) if row["host"]]
    total: dict[str, int] = {}
    for row in rows:
        total[row["host"]] = total.get(row["host"], 0) + row["failures_all"]
    rows.sort(key=lambda row: (-total[row["host"]], row["host"], -row["failures_all"]))
    columns = [
        Column("host", "node"),
        Column("category", "category"),
        Column("failures_all", "failures", "count"),
        Column("jobs", "runs", "count"),
        Column("accelerator_hours", "accelerator-hours lost", "hours"),
    ]
    plot = {"kind": "heat", "x": "category", "y": "host", "z": "failures_all", "most": MAX_NODES}
    links = {"to": "/runs", "parameters": {"category": "category", "host": "host"}}
    return table(columns, rows[:MAX_ROWS], plot=plot, links=links, of=len(rows))


def over_time(source: Source, query: PageQuery) -> dict[str, Any]:
    """Failures stacked by category."""
    period = source.period(query)
    failures_by_period = source.rows(
        build_query("failures", source.filter_for(query, period, "category")), query
    )
    total: dict[str, int] = {}
    by_period: dict[Any, dict[str, Any]] = {}
    for row in failures_by_period:
        total[row["category"]] = total.get(row["category"], 0) + row["failures_all"]
        by_period.setdefault(row[period], {period: row[period]})[row["category"]] = row[
            "failures_all"
        ]
    names = sorted(total, key=lambda name: (-total[name], name))
    rows = [{**dict.fromkeys(names, 0), **row} for row in by_period.values()]
    columns = [Column(period, period, "period"), *(Column(name, name, "count") for name in names)]
    return table(columns, rows, plot={"kind": "stack", "x": period, "parts": names})


def categories(source: Source, query: PageQuery) -> dict[str, Any]:
    filter_ = source.filter_for(query, "category", "owner")
    return table(
        [
            Column("category", "category"),
            Column("owner", "owner"),
            Column("failures_all", "failures", "count"),
            Column("jobs", "runs", "count"),
            Column("accelerator_hours", "accelerator-hours lost", "hours"),
            Column("rolled_back_accelerator_hours", "of which rolled back", "hours"),
            Column("ttr_p50_s", "median Time to Recover", "seconds"),
            Column("never_recovered", "never recovered", "count"),
        ],
        source.rows(build_query("failures", filter_), query),
        links={"to": "/runs", "parameters": {"category": "category"}},
    )


FAILURES_PAGE = Page(
    "/failures",
    "Failures",
    "Failures by category and by the node where they began, with their cost.",
    (
        Panel(
            "failures-nodes",
            "Nodes and categories",
            "Failures by the node where they began. Click a cell to list the failed runs.",
            "tall",
            nodes,
        ),
        Panel("failures-time", "Over time", "Failures by category.", "chart", over_time),
        Panel(
            "failures-categories",
            "Categories",
            "",
            "table",
            categories,
        ),
        Panel(
            "failures-lemons",
            "Lemon nodes",
            "Nodes on which significantly more runs failed than expected; over the whole store.",
            "table",
            alerts.lemon_nodes,
            live=True,
        ),
    ),
)
