"""Failures, and the accelerator-hours that they cost: training rolled back, and recovery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered, per_job, weighted
from headway.fleet.schema import FAILURE_COLUMNS

if TYPE_CHECKING:
    import ibis.expr.types as ir

FAILURE_DIMENSIONS = ("category", "owner", "retry", "host", "confidence", "fingerprint", "decision")


def failures_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """`failures` are those of infra, as published; `accelerator_hours` is what all of them lost."""
    rows = per_job(filtered(tables, "failures", "at", asked), "time_to_recover_s", asked)
    recovered = rows.time_to_recover_s.fill_null(0.0)
    recovers = rows.time_to_recover_s.notnull().ifelse(1.0, 0.0)
    counts = {
        column: rows.count(where=rows.owner == owner) for owner, column in FAILURE_COLUMNS.items()
    }
    found = rows.agg(
        by=list(asked.by),
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
    return ordered(found, asked, ("accelerator_hours", "failures_all"))
