"""Hosts: what ran on them, how much of that trained, and what failed there first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered

if TYPE_CHECKING:
    import ibis.expr.types as ir

NODE_DIMENSIONS = ("host",)


def nodes_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """By the attempts that began in that stretch of time."""
    rows = filtered(tables, "nodes", "started_at", asked)
    runs = rows.agg(
        by=list(dict.fromkeys([*asked.by, "run_id"])),
        attempts=rows.count(),
        failures=rows.failures.sum(),
        accelerator_s=rows.accelerator_s.sum(),
        effective_s=rows.effective_s.sum(),
    )
    share = 100.0 * runs.effective_s / runs.accelerator_s.nullif(0.0)
    found = runs.agg(
        by=list(asked.by),
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
    return ordered(found, asked, ("failures", "accelerator_hours"))
