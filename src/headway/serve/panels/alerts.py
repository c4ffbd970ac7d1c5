"""What rules have raised, and what looks wrong without any rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headway.serve.panels.shown import Column, table
from headway.serve.search import BY, Found
from headway.serve.source import Source
from headway.serve.wanted import Wanted

WAIT = {"wait": "Being computed. It appears here by itself."}


def raised(source: Source, wanted: Wanted) -> dict[str, Any]:
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


def marks(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Change points, to be drawn into the chart of ETT over time."""
    found = source.searched()
    if found is None:
        return WAIT
    marked = [
        {
            "at": _moment(one["at"]).isoformat(),
            "slice": "/".join(one["slice"]),
            "bucket": one["bucket"],
            "points": round(one["points"], 2),
        }
        for one in _fitting(source, found, wanted)
    ]
    return {"marks": marked}


def changes(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Regressions, the newest first."""
    found = source.searched()
    if found is None:
        return WAIT
    rows = [
        {
            **one,
            "at": _moment(one["at"]),
            "slice": "/".join(one["slice"]),
            "ett": f"{one['ett_before']:.1f} to {one['ett_after']:.1f} %",
            "level": 100 * one["level"],
            "fields": "; ".join(
                f"{field['field']}: {field['before']} to {field['after']}"
                for field in one["fields"]
            ),
        }
        for one in _fitting(source, found, wanted)
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
        empty=f"No change in {found['slices']:,} slices with {found['jobs']:,} runs.",
    )


def _fitting(source: Source, found: Found, wanted: Wanted) -> list[Found]:
    """Those of the slices and the time that the page is about."""
    asked = dict(wanted.where)
    since, until = wanted.between(source.reading.about())
    return [
        one
        for one in found["regressions"]
        if (since is None or _moment(one["at"]) >= since)
        and (until is None or _moment(one["at"]) < until)
        and all(asked.get(name, part) == part for name, part in zip(BY, one["slice"], strict=True))
    ]


def lemons(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Nodes whose failures are beyond chance."""
    found = source.searched()
    if found is None:
        return WAIT
    return table(
        [
            Column("host", "node"),
            Column("failures", "runs that failed", "count"),
            Column("expected", "chance would be", "number"),
            Column("hours", "hours", "hours"),
            Column("level", "false discovery rate", "percent"),
        ],
        [{**one, "level": 100 * one["level"]} for one in found["lemons"]],
        links={"to": "/runs", "parameters": {"host": "host"}},
        empty="No node fails beyond chance.",
    )


def behind(source: Source, wanted: Wanted) -> dict[str, Any]:
    """Running jobs below the least of their slice, or of their own first hours."""
    found = source.searched()
    if found is None:
        return WAIT
    rows = [
        {**one, "run": one["run_id"], "slice": "/".join(one["slice"])} for one in found["running"]
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


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=None)
