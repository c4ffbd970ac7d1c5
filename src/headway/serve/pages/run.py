"""One run, as the store knows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from headway import redact
from headway.fleet.queries import pages
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import build_query
from headway.format import count
from headway.ledger.buckets import BUCKETS, EFFECTIVE
from headway.serve.pages.panel import Card, Column, Page, Panel, cards, table, to_json_value
from headway.serve.query import PageQuery
from headway.serve.sources import NotFound, Source

MAX_ROWS = 200
LABELS = ("job", "team", "model", "project", "cluster", "host_type", "accelerator", "user", "image")
VERSIONS = ("torch", "python", "headway", "code", "config")


def _run(source: Source, query: PageQuery) -> dict[str, Any]:
    run_id = query.get("run_id")
    rows = source.get_or_compute(
        ("run", run_id), lambda: source.query(pages.rows_of_run("runs", run_id, "started_at", 1))
    )
    if not rows:
        raise NotFound(f"there is no run {run_id!r} in the store", code="run-not-found")
    row: dict[str, Any] = rows[0]
    return row


def _rows(source: Source, query: PageQuery, query_fn: Any) -> list[dict[str, Any]]:
    """Query only the files of the run's days."""
    row = _run(source, query)
    since: datetime = row["started_at"] - timedelta(days=1)
    return source.query(query_fn, since=since, until=row["ended_at"] + timedelta(days=1))


def headline(source: Source, query: PageQuery) -> dict[str, Any]:
    row = _run(source, query)
    wall = row["wall_s"]
    facts = [(name, to_json_value(row[name])) for name in (*LABELS, *VERSIONS) if row[name]]
    if row["command"]:
        facts.append(("command", to_json_value(redact.line(row["command"]))))
    state = "running" if row["running"] else row["outcome"] or "unknown"
    return cards(
        Card("ETT", 100 * row["effective_s"] / wall if wall else None, "percent"),
        Card("Wall time", wall, "seconds", f"on {count(row['accelerators'], 'accelerator')}"),
        Card("Time to Start", row["time_to_start_s"], "seconds", "to the first training"),
        Card("Steps", row["steps"], "count", "on new data"),
        Card("Attempts", row["attempts"], "count"),
        _failure_card(source, query),
        title=to_json_value(row["run"]),
        state=state,
        began=to_json_value(row["started_at"]),
        facts=facts,
        running=row["running"],
    )


def _failure_card(source: Source, query: PageQuery) -> Card:
    """Failures of infrastructure, as published; other failures as a remark."""
    filter_ = Filter(("owner",), where=(("run_id", query.get("run_id")),))
    rows = _rows(source, query, build_query("failures", filter_))
    by_owner = {row["owner"]: row["failures_all"] for row in rows}
    infra = by_owner.pop("infra", 0)
    others = ", ".join(f"{number} {owner}" for owner, number in sorted(by_owner.items()))
    return Card("Failures", infra, "count", f"infra; others: {others}" if others else "infra")


def buckets(source: Source, query: PageQuery) -> dict[str, Any]:
    """From the wall time to effective training, largest loss first."""
    run_id = query.get("run_id")
    all_rows = _rows(source, query, pages.buckets_of_run(run_id))
    wall = sum(row["seconds"] for row in all_rows)
    rows = [
        {**row, "percent": 100 * row["seconds"] / wall} for row in all_rows if row["seconds"] > 0
    ]
    rows.sort(key=lambda row: (row["leaf"] == EFFECTIVE, -row["seconds"]))
    columns = [
        Column("leaf", "bucket", "leaf"),
        Column("seconds", "time", "seconds"),
        Column("percent", "of the wall time", "percent"),
    ]
    return table(
        columns, rows, plot={"kind": "fall", "x": "leaf", "y": "seconds", "total": "wall time"}
    )


def by_hour(source: Source, query: PageQuery) -> dict[str, Any]:
    """Minutes of each hour by bucket."""
    all_rows = _rows(source, query, pages.buckets_of_run(query.get("run_id"), "hour"))
    by_time: dict[Any, dict[str, Any]] = {}
    for row in all_rows:
        by_time.setdefault(row["hour"], {"hour": row["hour"]})[row["leaf"]] = row["seconds"] / 60
    used = [leaf for leaf in BUCKETS if any(leaf in row for row in by_time.values())]
    columns = [Column("hour", "hour", "time"), *(Column(leaf, leaf, "minutes") for leaf in used)]
    return table(
        columns, list(by_time.values()), plot={"kind": "stack", "x": "hour", "parts": used}
    )


def attempts(source: Source, query: PageQuery) -> dict[str, Any]:
    rows = _rows(
        source, query, pages.rows_of_run("attempts", query.get("run_id"), "attempt", MAX_ROWS)
    )
    return table(
        [
            Column("attempt", "attempt", "count"),
            Column("outcome", "outcome", "outcome"),
            Column("started_at", "began", "time"),
            Column("wall_s", "wall time", "seconds"),
            Column("effective_s", "trained", "seconds"),
            Column("lost_s", "rolled back", "seconds"),
            Column("time_to_recover_s", "Time to Recover", "seconds"),
            Column("first_step", "first step", "count"),
            Column("last_step", "last step", "count"),
            Column("resumed_from", "resumed from", "count"),
            Column("accelerators", "accelerators", "count"),
        ],
        rows,
    )


def failures(source: Source, query: PageQuery) -> dict[str, Any]:
    rows = _rows(source, query, pages.rows_of_run("failures", query.get("run_id"), "at", MAX_ROWS))
    return table(
        [
            Column("at", "when", "time"),
            Column("attempt", "attempt", "count"),
            Column("category", "category"),
            Column("owner", "owner"),
            Column("root_rank", "rank", "count"),
            Column("host", "node"),
            Column("lost_s", "rolled back", "seconds"),
            Column("time_to_recover_s", "Time to Recover", "seconds"),
            Column("decision", "decision"),
            Column("evidence", "evidence", "long"),
        ],
        rows,
    )


def saves(source: Source, query: PageQuery) -> dict[str, Any]:
    """Newest first."""
    all_rows = _rows(
        source, query, pages.rows_of_run("checkpoints", query.get("run_id"), "at", 5000)
    )
    return table(
        [
            Column("at", "when", "time"),
            Column("step", "step", "count"),
            Column("level", "level"),
            Column("blocked_s", "blocked", "seconds"),
            Column("durable_s", "durable after", "seconds"),
            Column("bytes", "bytes", "count"),
            Column("error", "error", "long"),
        ],
        all_rows[: -MAX_ROWS - 1 : -1],
        of=len(all_rows),
    )


def compiles(source: Source, query: PageQuery) -> dict[str, Any]:
    """Longest first."""
    all_rows = _rows(source, query, pages.rows_of_run("compiles", query.get("run_id"), "at", 5000))
    all_rows.sort(key=lambda row: -row["seconds"])
    return table(
        [
            Column("place", "place", "long"),
            Column("seconds", "longest rank", "seconds"),
            Column("times", "times", "count"),
            Column("recompile", "recompile", "mark"),
            Column("cached", "from a cache", "mark"),
            Column("attempt", "attempt", "count"),
            Column("reason", "reason", "long"),
        ],
        all_rows[:MAX_ROWS],
        of=len(all_rows),
    )


def nodes(source: Source, query: PageQuery) -> dict[str, Any]:
    rows = _rows(
        source, query, pages.rows_of_run("nodes", query.get("run_id"), "attempt", MAX_ROWS)
    )
    for row in rows:
        row["percent"] = (
            100 * row["effective_s"] / row["accelerator_s"] if row["accelerator_s"] else None
        )
    return table(
        [
            Column("host", "node"),
            Column("attempt", "attempt", "count"),
            Column("accelerators", "accelerators", "count"),
            Column("percent", "trained", "percent"),
            Column("failures", "failures that began on it", "count"),
        ],
        rows,
    )


RUN_PAGE = Page(
    "/runs/",
    "Run",
    "",
    (
        Panel("run-headline", "Headline", "", "cards", headline),
        Panel(
            "run-buckets",
            "Where the time went",
            "From the wall time to training on new data.",
            "chart",
            buckets,
        ),
        Panel("run-hours", "Hour by hour", "Minutes of each hour.", "chart", by_hour),
        Panel("run-attempts", "Attempts", "", "table", attempts),
        Panel("run-failures", "Failures", "", "table", failures),
        Panel("run-saves", "Saves", "Newest first.", "table", saves),
        Panel("run-compiles", "Compiles", "Longest first.", "table", compiles),
        Panel("run-nodes", "Nodes", "", "table", nodes),
    ),
)
