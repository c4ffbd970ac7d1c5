"""Time to Recover: over time, by stage, by cause."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries.pages import bucket_hours
from headway.fleet.queries.queries import build_query
from headway.ledger.buckets import DETECTION, DOWNTIME
from headway.serve.pages import panel
from headway.serve.pages.panel import Card, Column, Page, Panel, cards, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source
from headway.taxonomy import START_STAGES

LEAVES = (DETECTION, DOWNTIME, *(f"recover.{stage}" for stage in START_STAGES))


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    row = source.single_row("ttr", query)
    failed = source.single_row("failures", query, "owner", whole=True)
    return cards(
        Card("Median", row.get("ttr_p50_s"), "seconds", "of all interruptions"),
        Card("p90", row.get("ttr_p90_s"), "seconds", "of all interruptions"),
        Card("Mean", row.get("ttr_s_by_jobs"), "seconds", "unweighted"),
        Card("Total", row.get("recovering_accelerator_hours"), "hours", "accelerator-hours"),
        Card("Interruptions", row.get("interruptions"), "count", "recovered"),
        Card("Never recovered", failed.get("never_recovered"), "count", "failures"),
    )


def over_time(source: Source, query: PageQuery) -> dict[str, Any]:
    return panel.percentiles_over_time(
        source,
        query,
        "ttr",
        Column("interruptions", "interruptions", "count"),
        Column("recovering_accelerator_hours", "accelerator-hours", "hours"),
    )


def stages(source: Source, query: PageQuery) -> dict[str, Any]:
    """Recovery time by stage, in the order of the stages."""
    rows_by_bucket = source.rows(
        bucket_hours(source.filter_for(query, "leaf"), LEAVES, "leaf"), query
    )
    by_bucket = {row["leaf"]: row for row in rows_by_bucket}
    rows = [by_bucket[leaf] for leaf in LEAVES if leaf in by_bucket]
    columns = [
        Column("leaf", "stage", "leaf"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("jobs", "runs", "count"),
    ]
    plot = {"kind": "fall", "x": "leaf", "y": "accelerator_hours", "total": "all recovery"}
    return table(columns, rows, plot=plot)


def by_cause(source: Source, query: PageQuery) -> dict[str, Any]:
    """Recovery time by category, longest first."""
    failures = source.rows(build_query("failures", source.filter_for(query)), query)
    rows = sorted(failures, key=lambda row: -(row["ttr_p50_s"] or 0.0))
    columns = [
        Column("category", "cause"),
        Column("ttr_p50_s", "median", "seconds"),
        Column("ttr_s_by_jobs", "mean", "seconds"),
        Column("failures_all", "failures", "count"),
        Column("never_recovered", "never recovered", "count"),
    ]
    links = {"to": "/runs", "parameters": {"category": "category"}}
    plot = {"kind": "bars", "x": "category", "y": "ttr_p50_s", "most": 20}
    return table(columns, rows, plot=plot, links=links)


RECOVER_PAGE = Page(
    "/recover",
    "Time to Recover",
    "From the last sign of progress before an interruption to training again.",
    (
        Panel("recover-headline", "Headline", "", "cards", headline),
        Panel(
            "recover-time",
            "Over time",
            "Median and p90 of the interruptions.",
            "chart",
            over_time,
        ),
        Panel(
            "recover-stages",
            "By stage",
            "Accelerator-hours from a failure until the job trains again.",
            "chart",
            stages,
        ),
        Panel(
            "recover-causes",
            "By cause",
            "Median Time to Recover, by category of the failure.",
            "chart",
            by_cause,
        ),
    ),
)
