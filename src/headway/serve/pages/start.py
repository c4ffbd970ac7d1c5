"""Time to Start: by stage, over releases, over time."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries import pages
from headway.fleet.queries.releases import releases
from headway.report.waterfall import OTHER, START_BUCKETS, by_stage
from headway.serve.pages import panel
from headway.serve.pages.panel import Card, Column, Page, Panel, cards, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    row = source.single_row("tts", query)
    return cards(
        Card("Median", row.get("tts_p50_s"), "seconds", "of all runs"),
        Card("p90", row.get("tts_p90_s"), "seconds", "of all runs"),
        Card("Mean", row.get("tts_s_by_jobs"), "seconds", "unweighted"),
        Card("Weighted mean", row.get("tts_s"), "seconds", "by accelerator-hours"),
        Card("Total", row.get("starting_accelerator_hours"), "hours", "accelerator-hours"),
        Card("Never trained", row.get("never_trained"), "count", "runs, not included here"),
    )


def stages(source: Source, query: PageQuery) -> dict[str, Any]:
    """Mean seconds of each stage, in the order of the stages."""
    row = source.single_row("tts", query)
    started = (row.get("jobs") or 0) - (row.get("never_trained") or 0)
    bucket_rows = source.rows(pages.start_stages(source.filter_for(query), START_BUCKETS), query)
    seconds = {row["leaf"]: row["seconds"] / started for row in bucket_rows} if started else {}
    split = by_stage(seconds, row.get("tts_s_by_jobs"))
    rows = [{"leaf": leaf, "seconds": mean} for leaf, mean in split.items()]
    columns = [Column("leaf", "stage", "leaf"), Column("seconds", "mean", "seconds")]
    total = "Time to Start"
    return table(columns, rows, plot={"kind": "fall", "x": "leaf", "y": "seconds", "total": total})


def by_release(source: Source, query: PageQuery) -> dict[str, Any]:
    """Stages stacked by release."""
    release = query.get("release", "torch")
    bars = releases(lambda of: source.rows(of, query), source.filter_for(query), release)
    used = [leaf for leaf in (*START_BUCKETS, OTHER) if any(leaf in bar.stages for bar in bars)]
    rows = [
        {
            release: bar.name,
            "first": bar.first,
            "jobs": bar.runs,
            "tts_p50_s": bar.median,
            "tts_p90_s": bar.p90,
            "tts_s_by_jobs": bar.mean,
            **{leaf: bar.stages.get(leaf, 0.0) for leaf in used},
        }
        for bar in bars
    ]
    columns = [
        Column(release, release, "period" if release in ("week", "month") else "text"),
        Column("first", "first seen", "time"),
        Column("jobs", "runs", "count"),
        Column("tts_p50_s", "median", "seconds"),
        Column("tts_p90_s", "p90", "seconds"),
        Column("tts_s_by_jobs", "mean", "seconds"),
        *(Column(leaf, leaf.removeprefix("start."), "seconds") for leaf in used),
    ]
    return table(columns, rows, plot={"kind": "stack", "x": release, "parts": used})


def over_time(source: Source, query: PageQuery) -> dict[str, Any]:
    return panel.percentiles_over_time(
        source,
        query,
        "tts",
        Column("jobs", "runs", "count"),
        Column("never_trained", "never trained", "count"),
    )


START_PAGE = Page(
    "/start",
    "Time to Start",
    "From the allocation of the machines to the start of training, by the start of the run.",
    (
        Panel("start-headline", "Headline", "", "cards", headline),
        Panel(
            "start-stages",
            "By stage",
            "Mean seconds per run, without runs that never trained.",
            "chart",
            stages,
        ),
        Panel(
            "start-releases",
            "Over releases",
            "The same stages for each release, in order of first use.",
            "chart",
            by_release,
        ),
        Panel("start-time", "Over time", "Median and p90 of the runs.", "chart", over_time),
    ),
    ("release",),
)
