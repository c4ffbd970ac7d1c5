"""Queries on a fleet store: one Ibis expression each, identical on every engine.

They use only what Ibis supports on DuckDB, Spark and PostgreSQL. Every result has `jobs` and
`accelerator_hours`, and every mean twice: `..._by_jobs` weights runs equally, the other weights
them by accelerator-hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from headway.errors import UsageError
from headway.fleet.queries.dimensions import (
    DIMENSIONS,
    TIME_GRAINS,
    Filter,
    filtered,
    hours,
    join_attempts,
    ordered,
    per_job,
    weighted,
)
from headway.fleet.schema import FAILURE_COLUMNS
from headway.ledger.buckets import EFFECTIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    import ibis.expr.types as ir


ETT_DIMENSIONS: tuple[str, ...] = ()
SIDES = ("ett", "idleness", "failure")


def ett_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """ETT%, idleness% and failure%, aggregated per run first to allow both weightings."""
    rows = filtered(tables, "hours", "hour", filter_)
    failed = rows.leaf.startswith("failure.") | rows.leaf.startswith("recover.")
    trained = rows.leaf == EFFECTIVE
    sides = {"ett": trained, "failure": failed, "idleness": ~(trained | failed)}
    runs = rows.agg(
        by=list(dict.fromkeys([*filter_.by, "run_id"])),
        wall_s=rows.seconds.sum(),
        total_s=rows.accelerator_s.sum(),
        **{f"{side}_s": rows.seconds.sum(where=rows_of) for side, rows_of in sides.items()},
        **{f"{side}_a": rows.accelerator_s.sum(where=rows_of) for side, rows_of in sides.items()},
    )
    runs = runs.filter(runs.wall_s > 0)
    shares = {
        f"{side}_percent": 100.0 * runs[f"{side}_a"].fill_null(0.0).sum() / runs.total_s.sum()
        for side in SIDES
    }
    means = {
        f"{side}_percent_by_jobs": (100.0 * runs[f"{side}_s"].fill_null(0.0) / runs.wall_s).mean()
        for side in SIDES
    }
    result = runs.agg(
        by=list(filter_.by),
        jobs=runs.count(),
        accelerator_hours=hours(runs.total_s),
        **shares,
        **means,
    )
    return ordered(result, filter_)


TTS_DIMENSIONS: tuple[str, ...] = ()


def tts_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """Time to Start; runs that never trained are counted in `never_trained`."""
    rows = join_attempts(tables, filtered(tables, "runs", "started_at", filter_))
    started = rows.time_to_start_s.notnull()
    result = rows.agg(
        by=list(filter_.by),
        jobs=rows.count(),
        never_trained=rows.count(where=~started),
        accelerator_hours=hours(rows.accelerator_s),
        starting_accelerator_hours=hours(rows.first_accelerators * rows.time_to_start_s),
        tts_s=weighted(rows.time_to_start_s, started.ifelse(rows.accelerator_s, 0.0)),
        tts_s_by_jobs=rows.time_to_start_s.mean(),
        tts_p50_s=rows.time_to_start_s.quantile(0.5),
        tts_p90_s=rows.time_to_start_s.quantile(0.9),
    )
    return ordered(result, filter_)


TTR_DIMENSIONS = ("resumed_by",)


def ttr_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """Time to Recover; it belongs to the attempt that ended the interruption."""
    rows = filtered(tables, "attempts", "started_at", filter_)
    rows = per_job(rows.filter(rows.time_to_recover_s.notnull()), "time_to_recover_s", filter_)
    result = rows.agg(
        by=list(filter_.by),
        jobs=rows.run_id.nunique(),
        interruptions=rows.count(),
        accelerator_hours=hours(rows.accelerators * rows.wall_s),
        recovering_accelerator_hours=hours(rows.accelerators * rows.time_to_recover_s),
        ttr_s=weighted(rows.time_to_recover_s, rows.accelerators * rows.wall_s),
        ttr_s_by_jobs=weighted(rows.time_to_recover_s, rows.job),
        ttr_p50_s=rows.time_to_recover_s.quantile(0.5),
        ttr_p90_s=rows.time_to_recover_s.quantile(0.9),
    )
    return ordered(result, filter_)


FAILURE_DIMENSIONS = ("category", "owner", "retry", "host", "confidence", "fingerprint", "decision")


def failures_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """`failures` are infrastructure failures, as published; `accelerator_hours` are lost by all."""
    rows = per_job(filtered(tables, "failures", "at", filter_), "time_to_recover_s", filter_)
    recovered = rows.time_to_recover_s.fill_null(0.0)
    recovers = rows.time_to_recover_s.notnull().ifelse(1.0, 0.0)
    counts = {
        column: rows.count(where=rows.owner == owner) for owner, column in FAILURE_COLUMNS.items()
    }
    result = rows.agg(
        by=list(filter_.by),
        jobs=rows.run_id.nunique(),
        **counts,
        failures_all=rows.count(),
        never_recovered=rows.count(where=rows.time_to_recover_s.isnull()),
        accelerator_hours=hours(rows.accelerators * (rows.lost_s + recovered)),
        rolled_back_accelerator_hours=hours(rows.accelerators * rows.lost_s),
        ttr_s=weighted(rows.time_to_recover_s, rows.accelerators * recovers),
        ttr_s_by_jobs=weighted(rows.time_to_recover_s, recovers * rows.job),
        ttr_p50_s=rows.time_to_recover_s.quantile(0.5),
    )
    return ordered(result, filter_, ("accelerator_hours", "failures_all"))


CHECKPOINT_DIMENSIONS = ("level",)


def checkpoints_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """`accelerator_hours` is the time that checkpoints block."""
    rows = per_job(filtered(tables, "checkpoints", "at", filter_), "blocked_s", filter_)
    blocking = rows.blocked_s.notnull()
    result = rows.agg(
        by=list(filter_.by),
        jobs=rows.run_id.nunique(),
        saves=rows.count(),
        failed=rows.count(where=rows.error.notnull()),
        accelerator_hours=hours(rows.accelerators * rows.blocked_s),
        blocked_s=weighted(rows.blocked_s, blocking.ifelse(rows.accelerators, 0).cast("float64")),
        blocked_s_by_jobs=weighted(rows.blocked_s, blocking.ifelse(rows.job, 0.0)),
        blocked_p90_s=rows.blocked_s.quantile(0.9),
        durable_p90_s=rows.durable_s.quantile(0.9),
    )
    return ordered(result, filter_)


COMPILE_DIMENSIONS = ("place", "reason", "recompile", "cached")


def compiles_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """Compiles, aggregated per run first, on the ranks that took longest."""
    rows = filtered(tables, "compiles", "at", filter_)
    runs = rows.agg(
        by=list(dict.fromkeys([*filter_.by, "run_id"])),
        times=rows.times.sum(),
        again=rows.times.sum(where=rows.recompile).fill_null(0),
        hits=rows.times.sum(where=rows.cached).fill_null(0),
        seconds=rows.seconds.sum(),
        accelerator_s=(rows.seconds * rows.accelerators).sum(),
        accelerators=rows.accelerators.max(),
    )
    counts = {"compiles": runs.times, "recompiles": runs.again, "from_cache": runs.hits}
    result = runs.agg(
        by=list(filter_.by),
        jobs=runs.count(),
        accelerator_hours=hours(runs.accelerator_s),
        **{name: column.sum() for name, column in counts.items()},
        seconds=weighted(runs.seconds, runs.accelerators.cast("float64")),
        seconds_by_jobs=runs.seconds.mean(),
    )
    return ordered(result, filter_)


NODE_DIMENSIONS = ("host",)


def nodes_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """Hosts, over the attempts that began in the time range."""
    rows = filtered(tables, "nodes", "started_at", filter_)
    runs = rows.agg(
        by=list(dict.fromkeys([*filter_.by, "run_id"])),
        attempts=rows.count(),
        failures=rows.failures.sum(),
        accelerator_s=rows.accelerator_s.sum(),
        effective_s=rows.effective_s.sum(),
    )
    share = 100.0 * runs.effective_s / runs.accelerator_s.nullif(0.0)
    result = runs.agg(
        by=list(filter_.by),
        jobs=runs.count(),
        attempts=runs.attempts.sum(),
        accelerator_hours=hours(runs.accelerator_s),
        effective_percent=100.0 * runs.effective_s.sum() / runs.accelerator_s.sum().nullif(0.0),
        effective_percent_by_jobs=share.mean(),
        failures=runs.failures.sum(),
        failures_per_1000_accelerator_hours=3.6e6
        * runs.failures.sum()
        / runs.accelerator_s.sum().nullif(0.0),
    )
    return ordered(result, filter_, ("failures", "accelerator_hours"))


TOP_DIMENSIONS = ("leaf",)


def top_query(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    """Time that was not training; `percent` is of all time of the same runs and periods."""
    slices = [name for name in filter_.by if name != "leaf"]
    run = ["run_id", *(name for name in slices if name in TIME_GRAINS)]
    rows = filtered(tables, "hours", "hour", filter_)
    runs = rows.agg(
        by=list(dict.fromkeys([*slices, *run])),
        lived_s=rows.seconds.sum(),
        lived_a=rows.accelerator_s.sum(),
    )
    rows = rows.filter(rows.leaf != EFFECTIVE)
    lost = rows.agg(
        by=list(dict.fromkeys([*filter_.by, "run_id"])),
        seconds=rows.seconds.sum(),
        accelerator_s=rows.accelerator_s.sum(),
    ).join(runs.select(*run, "lived_s"), run)
    losses = lost.agg(
        by=list(filter_.by),
        jobs=lost.count(),
        accelerator_hours=hours(lost.accelerator_s),
        share=(100.0 * lost.seconds / lost.lived_s).sum(),
    )
    totals = runs.agg(by=slices, all_jobs=runs.count(), all_s=runs.lived_a.sum())
    joined = losses.join(
        totals, [losses[name].identical_to(totals[name]) for name in slices] or True
    )
    shares = joined.select(
        *(losses[name] for name in losses.columns if name != "share"),
        percent=360000.0 * losses.accelerator_hours / totals.all_s,
        percent_by_jobs=losses.share / totals.all_jobs,
    )
    return ordered(shares, filter_)


class Query(NamedTuple):
    """A query with its default grouping and the dimensions that only it supports."""

    build: Callable[[Mapping[str, ir.Table], Filter], ir.Table]
    by: tuple[str, ...] = ()
    dimensions: tuple[str, ...] = ()


QUERIES = {
    "ett": Query(ett_query, dimensions=ETT_DIMENSIONS),
    "tts": Query(tts_query, dimensions=TTS_DIMENSIONS),
    "ttr": Query(ttr_query, dimensions=TTR_DIMENSIONS),
    "failures": Query(failures_query, ("category",), FAILURE_DIMENSIONS),
    "checkpoints": Query(checkpoints_query, ("level",), CHECKPOINT_DIMENSIONS),
    "compile": Query(compiles_query, ("recompile", "cached"), COMPILE_DIMENSIONS),
    "nodes": Query(nodes_query, ("host",), NODE_DIMENSIONS),
    "top": Query(top_query, ("leaf",), TOP_DIMENSIONS),
}


def build_query(name: str, filter_: Filter) -> Callable[[Mapping[str, ir.Table]], ir.Table]:
    """A query ready for `run_query`; UsageError for an unsupported dimension."""
    query = QUERIES[name]
    filter_ = filter_._replace(by=filter_.by or query.by)
    allowed = (*DIMENSIONS, *query.dimensions)
    for dimension in filter_.by:
        if dimension not in allowed:
            raise UsageError(
                f"{name} cannot be grouped by {dimension!r}; available are {', '.join(allowed)}",
                code="split-unknown",
                split=dimension,
            )
    return lambda tables: query.build(tables, filter_)
