"""The page of the whole fleet."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries.pages import bucket_hours
from headway.fleet.queries.queries import build_query
from headway.ledger.buckets import LOST
from headway.serve.pages.panel import Card, Column, Page, Panel, add_cumulative, cards, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source

MAX_LINES = 8  # slices in the chart; the table has all


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    ett = source.single_row("ett", query)
    tts, ttr = source.single_row("tts", query), source.single_row("ttr", query)
    hours = ett.get("accelerator_hours") or 0.0
    trained = ett.get("ett_percent")
    lost = hours * (100.0 - trained) / 100.0 if trained is not None else None
    unsaved = source.rows(bucket_hours(source.filter_for(query), (LOST,)), query)
    return cards(
        Card("ETT", trained, "percent", _unweighted(ett)),
        Card("Accelerator-hours", hours, "hours", _count(ett.get("jobs"), "run")),
        Card("Lost", lost, "hours", "accelerator-hours not training"),
        Card("Unsaved", unsaved[0]["accelerator_hours"], "hours", "trained, then rolled back"),
        Card("Time to Start", tts.get("tts_p50_s"), "seconds", _p90(tts, "tts_p90_s")),
        Card("Time to Recover", ttr.get("ttr_p50_s"), "seconds", _p90(ttr, "ttr_p90_s")),
    )


def _unweighted(ett: dict[str, Any]) -> str:
    value = ett.get("ett_percent_by_jobs")
    return "" if value is None else f"{value:.1f} % unweighted mean"


def _count(number: int | None, noun: str) -> str:
    return f"{number or 0:,} {noun}{'' if number == 1 else 's'}"


def _p90(row: dict[str, Any], name: str) -> str:
    from headway.format import duration

    value = row.get(name)
    return "median" if value is None else f"median; p90 {duration(round(value * 1e9))}"


def over_time(source: Source, query: PageQuery) -> dict[str, Any]:
    """ETT by period, one line in all or one for each slice."""
    period, by = source.period(query), query.get("by")
    rows = source.rows(
        build_query("ett", source.filter_for(query, period, *filter(None, [by]))), query
    )
    columns = [
        Column(period, period, "period"),
        *([Column(by, by)] if by else []),
        Column("ett_percent", "ETT", "percent"),
        Column("ett_percent_by_jobs", "ETT, unweighted mean", "percent"),
        Column("idleness_percent", "idleness", "percent"),
        Column("failure_percent", "failure", "percent"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("jobs", "runs", "count"),
    ]
    lines = ["ett_percent"] if by else ["ett_percent", "ett_percent_by_jobs"]
    plot = {"kind": "lines", "x": period, "lines": lines, "split": by, "most": MAX_LINES}
    plot["folded"] = ["ett_percent_by_jobs"]
    return table(columns, rows, plot=plot, marks=f"/data/marks{query.query_string}")


def by_bucket(source: Source, query: PageQuery) -> dict[str, Any]:
    """Lost time by bucket, largest first."""
    rows = source.rows(build_query("top", source.filter_for(query)), query)
    columns = [
        Column("leaf", "bucket", "leaf"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("percent", "share", "percent"),
        Column("percent_by_jobs", "share, unweighted mean", "percent"),
        Column("cumulative", "cumulative share of losses", "percent"),
        Column("jobs", "runs", "count"),
    ]
    plot = {"kind": "pareto", "x": "leaf", "y": "accelerator_hours", "most": 16}
    return table(columns, add_cumulative(rows, "accelerator_hours"), plot=plot)


def by_cause(source: Source, query: PageQuery) -> dict[str, Any]:
    """Cost of failures by category, largest first."""
    rows = source.rows(build_query("failures", source.filter_for(query)), query)
    columns = [
        Column("category", "cause"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("rolled_back_accelerator_hours", "of which rolled back", "hours"),
        Column("cumulative", "cumulative share", "percent"),
        Column("failures_all", "failures", "count"),
        Column("never_recovered", "never recovered", "count"),
        Column("jobs", "runs", "count"),
    ]
    plot = {"kind": "pareto", "x": "category", "y": "accelerator_hours", "most": 16}
    links = {"to": "/runs", "parameters": {"category": "category"}}
    return table(columns, add_cumulative(rows, "accelerator_hours"), plot=plot, links=links)


OVERVIEW_PAGE = Page(
    "/",
    "Fleet",
    "Share of accelerator time spent training on new data, and where the rest went.",
    (
        Panel("headline", "Headline", "", "cards", headline),
        Panel(
            "ett",
            "Effective Training Time",
            "Share of accelerator-hours. Marks are change points of single slices.",
            "chart",
            over_time,
        ),
        Panel(
            "lost-by-bucket",
            "Lost accelerator-hours by bucket",
            "All time not spent training on new data; the line is the cumulative share.",
            "chart",
            by_bucket,
        ),
        Panel(
            "lost-by-cause",
            "Lost accelerator-hours by cause of failure",
            "Rolled-back training, and recovery. Click a bar to list its runs.",
            "chart",
            by_cause,
        ),
    ),
)
