"""Checkpoints: time that saves block, and training that was not saved."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries.pages import bucket_hours
from headway.fleet.queries.queries import build_query
from headway.ledger.buckets import LOST
from headway.serve.pages.panel import Card, Column, Page, Panel, cards, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source

BLOCK_BUCKET = "waste.checkpoint_block"


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    """Cost of saves, and of training that was not saved."""
    filter_ = source.filter_for(query, "leaf")
    rows = source.rows(bucket_hours(filter_, (BLOCK_BUCKET, LOST), "leaf"), query)
    hours_by_bucket = {row["leaf"]: row["accelerator_hours"] for row in rows}
    total_hours = source.single_row("ett", query).get("accelerator_hours") or 0.0
    saves = source.rows(build_query("checkpoints", source.filter_for(query)), query)
    disk = next((row for row in saves if row["level"] == "disk"), {})
    count, failed = (sum(row[name] for row in saves) for name in ("saves", "failed"))
    return cards(
        Card(
            "Blocked",
            hours_by_bucket.get(BLOCK_BUCKET, 0.0),
            "hours",
            _share_of(hours_by_bucket.get(BLOCK_BUCKET), total_hours),
        ),
        Card(
            "Unsaved",
            hours_by_bucket.get(LOST, 0.0),
            "hours",
            _share_of(hours_by_bucket.get(LOST), total_hours),
        ),
        Card("Saves", count, "count", f"{failed:,} failed"),
        Card("Blocked per save", disk.get("blocked_s_by_jobs"), "seconds", "unweighted mean"),
        Card("Blocked per save, p90", disk.get("blocked_p90_s"), "seconds", "to disk"),
        Card("Durable after, p90", disk.get("durable_p90_s"), "seconds", "to disk"),
    )


def _share_of(hours: float | None, total: float) -> str:
    return f"{100.0 * (hours or 0.0) / total:.2f} % of all accelerator-hours" if total else ""


def blocking(source: Source, query: PageQuery) -> dict[str, Any]:
    return _over_time(source, query, BLOCK_BUCKET)


def unsaved(source: Source, query: PageQuery) -> dict[str, Any]:
    return _over_time(source, query, LOST)


def _over_time(source: Source, query: PageQuery, leaf: str) -> dict[str, Any]:
    period = source.period(query)
    rows = source.rows(bucket_hours(source.filter_for(query, period), (leaf,), period), query)
    columns = [
        Column(period, period, "period"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("jobs", "runs", "count"),
    ]
    plot = {"kind": "bars", "x": period, "y": "accelerator_hours", "leaf": leaf}
    return table(columns, rows, plot=plot)


def levels(source: Source, query: PageQuery) -> dict[str, Any]:
    rows = source.rows(build_query("checkpoints", source.filter_for(query)), query)
    return table(
        [
            Column("level", "level"),
            Column("saves", "saves", "count"),
            Column("failed", "failed", "count"),
            Column("blocked_s_by_jobs", "blocked per save", "seconds"),
            Column("blocked_p90_s", "blocked per save, p90", "seconds"),
            Column("durable_p90_s", "durable after, p90", "seconds"),
            Column("accelerator_hours", "accelerator-hours blocked", "hours"),
            Column("jobs", "runs", "count"),
        ],
        rows,
    )


CHECKPOINTS_PAGE = Page(
    "/checkpoints",
    "Checkpoints",
    "The cost of saves, and the training that was lost because it had not been saved.",
    (
        Panel("saves-headline", "Headline", "", "cards", headline),
        Panel(
            "saves-blocking",
            "Blocking",
            "Accelerator-hours in which training was blocked by a save.",
            "chart",
            blocking,
        ),
        Panel(
            "saves-unsaved",
            "Unsaved training time",
            "Accelerator-hours of training that were rolled back to the last checkpoint.",
            "chart",
            unsaved,
        ),
        Panel("saves-levels", "By level", "", "table", levels),
    ),
)
