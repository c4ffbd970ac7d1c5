"""Time to Start of the runs that began in a stretch of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, join_attempts, ordered, weighted

if TYPE_CHECKING:
    import ibis.expr.types as ir

TTS_DIMENSIONS: tuple[str, ...] = ()


def tts_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """Runs that never trained have none; they are counted beside."""
    rows = join_attempts(tables, filtered(tables, "runs", "started_at", asked))
    started = rows.time_to_start_s.notnull()
    found = rows.agg(
        by=list(asked.by),
        jobs=rows.count(),
        never_trained=rows.count(where=~started),
        accelerator_hours=hours(rows.accelerator_s),
        starting_accelerator_hours=hours(rows.first_accelerators * rows.time_to_start_s),
        tts_s=weighted(rows.time_to_start_s, started.ifelse(rows.accelerator_s, 0.0)),
        tts_s_by_jobs=rows.time_to_start_s.mean(),
        tts_p50_s=rows.time_to_start_s.quantile(0.5),
        tts_p90_s=rows.time_to_start_s.quantile(0.9),
    )
    return ordered(found, asked)
