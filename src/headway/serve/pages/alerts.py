"""Raised alerts, and regressions, bad nodes and slow jobs found without a rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headway.serve.pages.panel import Column, Page, Panel, table
from headway.serve.query import PageQuery
from headway.serve.search import SEARCH_DIMENSIONS, Regressions
from headway.serve.sources import Source

PENDING = {"wait": "Computing; the result appears here automatically."}


def raised_alerts(source: Source, query: PageQuery) -> dict[str, Any]:
    """The alerts file of the store, newest first."""
    rows = source.alerts()
    if rows is None:
        return {"none": "No alerts: this store has no alerts file."}
    return table(
        [
            Column("state", "state", "outcome"),
            Column("rule", "rule"),
            Column("slice", "slice"),
            Column("since", "since", "time"),
            Column("until", "until", "time"),
            Column("text", "description", "long"),
        ],
        rows,
        empty="No rule has raised an alert.",
    )


def change_marks(source: Source, query: PageQuery) -> dict[str, Any]:
    """Change points, shown in the chart of ETT over time."""
    result = source.regressions()
    if result is None:
        return PENDING
    marks = [
        {
            "at": _to_datetime(change["at"]).isoformat(),
            "slice": "/".join(change["slice"]),
            "bucket": change["bucket"],
            "points": round(change["points"], 2),
        }
        for change in _matching(source, result, query)
    ]
    return {"marks": marks}


def regressions(source: Source, query: PageQuery) -> dict[str, Any]:
    """Regressions, newest first."""
    result = source.regressions()
    if result is None:
        return PENDING
    rows = [
        {
            **change,
            "at": _to_datetime(change["at"]),
            "slice": "/".join(change["slice"]),
            "ett": f"{change['ett_before']:.1f} to {change['ett_after']:.1f} %",
            "level": 100 * change["level"],
            "fields": "; ".join(
                f"{field['field']}: {field['before']} to {field['after']}"
                for field in change["fields"]
            ),
        }
        for change in _matching(source, result, query)
    ]
    return table(
        [
            Column("at", "when", "time"),
            Column("slice", "slice"),
            Column("bucket", "bucket", "leaf"),
            Column("points", "increase", "points"),
            Column("ett", "ETT"),
            Column("hours", "hours since", "hours"),
            Column("level", "false discovery rate", "percent"),
            Column("fields", "changed fields", "long"),
        ],
        rows,
        empty=f"No changes in {result['slices']:,} slices with {result['jobs']:,} runs.",
    )


def _matching(source: Source, result: Regressions, query: PageQuery) -> list[Regressions]:
    """Changes in the slices and the time range of the page."""
    conditions = dict(query.where)
    since, until = query.time_range(source.store_cache.summary())
    return [
        change
        for change in result["regressions"]
        if (since is None or _to_datetime(change["at"]) >= since)
        and (until is None or _to_datetime(change["at"]) < until)
        and all(
            conditions.get(name, part) == part
            for name, part in zip(SEARCH_DIMENSIONS, change["slice"], strict=True)
        )
    ]


def lemon_nodes(source: Source, query: PageQuery) -> dict[str, Any]:
    """Nodes that fail significantly more often than expected."""
    result = source.regressions()
    if result is None:
        return PENDING
    return table(
        [
            Column("host", "node"),
            Column("failures", "failed runs", "count"),
            Column("expected", "expected", "number"),
            Column("hours", "hours", "hours"),
            Column("level", "false discovery rate", "percent"),
        ],
        [{**node, "level": 100 * node["level"]} for node in result["lemons"]],
        links={"to": "/runs", "parameters": {"host": "host"}},
        empty="No node fails significantly more often than expected.",
    )


def slow_jobs(source: Source, query: PageQuery) -> dict[str, Any]:
    """Running jobs below the lower bound of their slice, or slower than in their first hours."""
    result = source.regressions()
    if result is None:
        return PENDING
    rows = [
        {**job, "run": job["run_id"], "slice": "/".join(job["slice"])} for job in result["running"]
    ]
    return table(
        [
            Column("run", "run", "run"),
            Column("slice", "slice"),
            Column("words", "description", "long"),
            Column("hour", "detected in hour", "count"),
            Column("run_id", "id", "id"),
        ],
        rows,
        empty="No running job is slower than expected.",
    )


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=None)


ALERTS_PAGE = Page(
    "/alerts",
    "Alerts",
    "Alerts raised by rules, and anomalies detected without rules.",
    (
        Panel("alerts", "Raised by rules", "", "table", raised_alerts, live=True),
        Panel(
            "alerts-changes",
            "Regressions",
            "Slices whose share of training has dropped.",
            "table",
            regressions,
            live=True,
        ),
        Panel(
            "alerts-running",
            "Slow running jobs",
            "Below the lower bound of their slice, or slower than in their own first hours.",
            "table",
            slow_jobs,
            live=True,
        ),
    ),
)
