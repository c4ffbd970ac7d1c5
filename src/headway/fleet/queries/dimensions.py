"""Filters, time grains and run dimensions that all queries share, and weighted means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from headway.fleet.schema import LABELS

if TYPE_CHECKING:
    import ibis.expr.types as ir


RUN_DIMENSIONS = (
    *(column.name for column in LABELS),
    *("run_id", "run", "job", "user", "torch", "python", "headway"),
)
TIME_GRAINS = {"hour": "h", "day": "D", "week": "W", "month": "M"}  # with the units of Ibis
DIMENSIONS = (*TIME_GRAINS, *RUN_DIMENSIONS)


class Filter(NamedTuple):
    """Grouping, time range, run conditions and row limit of a query."""

    by: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    where: tuple[tuple[str, str], ...] = ()  # columns of `runs` and their required values
    limit: int | None = None


def filtered(tables: Mapping[str, ir.Table], name: str, time: str, filter_: Filter) -> ir.Table:
    """Rows of a table in the time range and of the matching runs, with all group-by columns."""
    rows = tables[name]
    if filter_.since is not None:
        rows = rows.filter(rows[time] >= filter_.since)
    if filter_.until is not None:
        rows = rows.filter(rows[time] < filter_.until)
    periods = {
        grain: rows[time].truncate(TIME_GRAINS[grain])
        for grain in filter_.by
        if grain in TIME_GRAINS
    }
    rows = rows.mutate(**periods) if periods else rows
    return rows if name == "runs" and not filter_.where else _join_runs(tables, rows, filter_)


def _join_runs(tables: Mapping[str, ir.Table], rows: ir.Table, filter_: Filter) -> ir.Table:
    runs = tables["runs"]
    for column, value in filter_.where:
        runs = runs.filter(runs[column] == value)
    names = [name for name in filter_.by if name in RUN_DIMENSIONS and name not in rows.columns]
    if names:
        return rows.join(runs.select("run_id", *names), "run_id")
    return rows.semi_join(runs, "run_id") if filter_.where else rows


def join_attempts(tables: Mapping[str, ir.Table], rows: ir.Table) -> ir.Table:
    """Rows of runs with sums over their attempts, whose numbers of accelerators may differ."""
    attempts = tables["attempts"]
    lost = attempts.wall_s - attempts.effective_s
    totals = attempts.agg(
        by="run_id",
        accelerator_s=(attempts.accelerators * attempts.wall_s).sum(),
        lost_accelerator_s=(attempts.accelerators * lost).sum(),
        first_accelerators=attempts.accelerators.sum(where=attempts.attempt == 0),
    )
    return rows.join(totals, "run_id")


def hours(seconds: ir.Value) -> ir.Value:
    """The sum of accelerator-seconds, in hours."""
    return seconds.sum() / 3600.0


def weighted(value: ir.Value, weight: ir.Value) -> ir.Value:
    """The weighted mean of a value; null if all weights are zero."""
    return (value * weight).sum() / weight.sum().nullif(0.0)


def per_job(rows: ir.Table, value: str, filter_: Filter) -> ir.Table:
    """Rows with a weight `job` that makes a mean of the value count each run once."""
    import ibis

    per_run = ibis.window(group_by=list(dict.fromkeys([*filter_.by, "run_id"])))
    return rows.mutate(job=1.0 / rows[value].count().over(per_run).nullif(0))


def ordered(
    rows: ir.Table, filter_: Filter, by: Sequence[str] = ("accelerator_hours",)
) -> ir.Table:
    """Sort by period, then by the largest values of `by`, then by name; apply the limit."""
    periods = [name for name in filter_.by if name in TIME_GRAINS]
    rest = [name for name in filter_.by if name not in TIME_GRAINS]
    keys = [*(rows[name].asc() for name in periods), *(rows[name].desc() for name in by)]
    rows = rows.order_by([*keys, *(rows[name].asc() for name in rest)])
    return rows.limit(filter_.limit) if filter_.limit else rows
