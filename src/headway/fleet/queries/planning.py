"""Inputs of `headway plan` measured over the runs of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway import redact
from headway.errors import UsageError
from headway.fleet.queries.dimensions import Filter, filtered
from headway.ledger.buckets import DOWNTIME
from headway.plan.measured import Measured, to_measured

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from headway.fleet.store.reader import QueryFn


Tables = Mapping[str, "ir.Table"]
Row = Mapping[str, Any]
COMPILE_BUCKET, RECOMPILE_BUCKET = "start.pt2_compile", "recover.pt2_compile"


def measured_in_store(
    query_row: Callable[[QueryFn], Row], filter_: Filter, source: str
) -> Measured:
    """Means over the matching runs; `query_row` returns the only row of a query."""
    runs = query_row(lambda tables: _runs(tables, filter_))
    if not runs["runs"]:
        raise UsageError(
            f"no matching runs in the store {source}; widen --where or --since",
            code="no-runs-match",
        )
    attempts = query_row(lambda tables: _attempts(tables, filter_))
    seconds = query_row(lambda tables: _bucket_seconds(tables, filter_))
    saves = query_row(lambda tables: _saves(tables, filter_))
    failures = query_row(lambda tables: _failures(tables, filter_))["failures"]
    hours = query_row(lambda tables: _node_hours(tables, filter_))["hours"] or 0.0
    return to_measured(
        source=redact.text(source),
        runs=runs["runs"],
        nodes=None,
        failures=failures,
        node_hours=hours,
        block=saves["blocked_s"],
        durable=None if saves["blocked_s"] is None else saves["durable_s"] or 0.0,
        time_to_start=runs["time_to_start_s"],
        compile=_mean_per(seconds["compile_s"], runs["started"]),
        time_to_recover=attempts["time_to_recover_s"],
        compile_again=_mean_per(seconds["compile_again_s"], attempts["interruptions"]),
        requeue=_mean_per(seconds["requeue_s"], attempts["interruptions"]),
    )


def _mean_per(seconds: float | None, times: int) -> float | None:
    return (seconds or 0.0) / times if times else None


def _runs(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "runs", "started_at", filter_)
    return rows.agg(
        runs=rows.count(),
        started=rows.time_to_start_s.count(),
        time_to_start_s=rows.time_to_start_s.mean(),
    )


def _attempts(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "attempts", "started_at", filter_)
    return rows.agg(
        interruptions=rows.time_to_recover_s.count(),
        time_to_recover_s=rows.time_to_recover_s.mean(),
    )


def _bucket_seconds(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "hours", "hour", filter_)
    return rows.agg(
        compile_s=rows.seconds.sum(where=rows.leaf == COMPILE_BUCKET),
        compile_again_s=rows.seconds.sum(where=rows.leaf == RECOMPILE_BUCKET),
        requeue_s=rows.seconds.sum(where=rows.leaf == DOWNTIME),
    )


def _saves(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "checkpoints", "at", filter_)
    rows = rows.filter((rows.level == "disk") & rows.error.isnull() & rows.blocked_s.notnull())
    late = (rows.durable_s.fill_null(0.0) - rows.blocked_s).clip(lower=0.0)
    return rows.agg(
        blocked_s=(rows.blocked_s + rows.slower_s.fill_null(0.0)).mean(), durable_s=late.mean()
    )


def _failures(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "failures", "at", filter_)
    return rows.agg(failures=rows.count(where=rows.retry != "no"))


def _node_hours(tables: Tables, filter_: Filter) -> ir.Table:
    rows = filtered(tables, "nodes", "started_at", filter_)
    return rows.agg(hours=rows.wall_s.sum() / 3600.0)
