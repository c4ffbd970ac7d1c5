"""Saves: how long they block the training, and how long until they could be restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered, per_job, weighted

if TYPE_CHECKING:
    import ibis.expr.types as ir

CHECKPOINT_DIMENSIONS = ("level",)


def checkpoints_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """`accelerator_hours` is what they blocked."""
    rows = per_job(filtered(tables, "checkpoints", "at", asked), "blocked_s", asked)
    blocking = rows.blocked_s.notnull()
    found = rows.agg(
        by=list(asked.by),
        jobs=rows.run_id.nunique(),
        saves=rows.count(),
        failed=rows.count(where=rows.error.notnull()),
        accelerator_hours=hours(rows.accelerators * rows.blocked_s),
        blocked_s=weighted(rows.blocked_s, blocking.ifelse(rows.accelerators, 0).cast("float64")),
        blocked_s_by_jobs=weighted(rows.blocked_s, blocking.ifelse(rows.job, 0.0)),
        blocked_p90_s=rows.blocked_s.quantile(0.9),
        durable_p90_s=rows.durable_s.quantile(0.9),
    )
    return ordered(found, asked)
