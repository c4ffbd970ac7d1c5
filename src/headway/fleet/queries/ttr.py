"""Time to Recover: one for each interruption that was recovered from in a stretch of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered, per_job, weighted

if TYPE_CHECKING:
    import ibis.expr.types as ir

TTR_DIMENSIONS = ("resumed_by",)


def ttr_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """The time counts to the attempt that ended the interruption."""
    rows = filtered(tables, "attempts", "started_at", asked)
    rows = per_job(rows.filter(rows.time_to_recover_s.notnull()), "time_to_recover_s", asked)
    found = rows.agg(
        by=list(asked.by),
        jobs=rows.run_id.nunique(),
        interruptions=rows.count(),
        accelerator_hours=hours(rows.accelerators * rows.wall_s),
        recovering_accelerator_hours=hours(rows.accelerators * rows.time_to_recover_s),
        ttr_s=weighted(rows.time_to_recover_s, rows.accelerators * rows.wall_s),
        ttr_s_by_jobs=weighted(rows.time_to_recover_s, rows.job),
        ttr_p50_s=rows.time_to_recover_s.quantile(0.5),
        ttr_p90_s=rows.time_to_recover_s.quantile(0.9),
    )
    return ordered(found, asked)
