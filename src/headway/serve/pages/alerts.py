"""Raised alerts, and regressions, bad nodes and slow jobs found without a rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headway.serve.pages.panel import Column, Page, Panel, table
from headway.serve.query import PageQuery
from headway.serve.search import SEARCH_DIMENSIONS, Regressions
from headway.serve.sources import Source

PENDING = {"wait": "Being computed. It appears here by itself."}


def raised_alerts(source: Source, query: PageQuery) -> dict[str, Any]:
    """The alerts file of the store, the newest first."""
    rows = source.alerts()
    if rows is None:
        return {"none": "There are no alerts: no rule has raised one in this store."}
    return table(
        [
            Column("state", "state", "outcome"),
            Column("rule", "rule"),
            Column("slice", "slice"),
            Column("since", "since", "time"),
            Column("until", "until", "time"),
            Column("text", "what", "long"),
        ],
        rows,
        empty="No rule has raised an alert.",
    )


def change_marks(source: Source, query: PageQuery) -> dict[str, Any]:
    """Change points, to be drawn into the chart of ETT over time."""
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
    """Regressions, the newest first."""
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
            Column("points", "grew by", "points"),
            Column("ett", "ETT"),
            Column("hours", "hours since", "hours"),
            Column("level", "false finds", "percent"),
            Column("fields", "what changed there", "long"),
        ],
        rows,
        empty=f"No change in {result['slices']:,} slices with {result['jobs']:,} runs.",
    )


def _matching(source: Source, result: Regressions, query: PageQuery) -> list[Regressions]:
    """Those of the slices and the time that the page is about."""
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
    """Nodes whose failures are beyond chance."""
    result = source.regressions()
    if result is None:
        return PENDING
    return table(
        [
            Column("host", "node"),
            Column("failures", "runs that failed", "count"),
            Column("expected", "chance would be", "number"),
            Column("hours", "hours", "hours"),
            Column("level", "false discovery rate", "percent"),
        ],
        [{**node, "level": 100 * node["level"]} for node in result["lemons"]],
        links={"to": "/runs", "parameters": {"host": "host"}},
        empty="No node fails beyond chance.",
    )


def slow_jobs(source: Source, query: PageQuery) -> dict[str, Any]:
    """Running jobs below the least of their slice, or of their own first hours."""
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
            Column("words", "what it does", "long"),
            Column("hour", "seen in its hour", "count"),
            Column("run_id", "id", "id"),
        ],
        rows,
        empty="No running job has fallen behind.",
    )


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=None)


ALERTS_PAGE = Page(
    "/alerts",
    "Alerts",
    "What rules have raised, and what looks wrong without any rule.",
    (
        Panel("alerts", "Raised by rules", "", "table", raised_alerts, live=True),
        Panel(
            "alerts-changes",
            "Regressions",
            "Slices that train less than before; false finds: the false discovery rate.",
            "table",
            regressions,
            live=True,
        ),
        Panel(
            "alerts-running",
            "Running jobs that fall behind",
            "Below the least of their slice, or slower than in their own first hours.",
            "table",
            slow_jobs,
            live=True,
        ),
    ),
)
