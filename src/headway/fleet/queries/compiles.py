"""What compiling cost, the first time and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered, weighted

if TYPE_CHECKING:
    import ibis.expr.types as ir

COMPILE_DIMENSIONS = ("place", "reason", "recompile", "cached")


def compiles_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """First for each run: what it compiled, on the ranks that took longest."""
    rows = filtered(tables, "compiles", "at", asked)
    runs = rows.agg(
        by=list(dict.fromkeys([*asked.by, "run_id"])),
        times=rows.times.sum(),
        again=rows.times.sum(where=rows.recompile).fill_null(0),
        hits=rows.times.sum(where=rows.cached).fill_null(0),
        seconds=rows.seconds.sum(),
        accelerator_s=(rows.seconds * rows.accelerators).sum(),
        accelerators=rows.accelerators.max(),
    )
    counts = {"compiles": runs.times, "recompiles": runs.again, "from_cache": runs.hits}
    found = runs.agg(
        by=list(asked.by),
        jobs=runs.count(),
        accelerator_hours=hours(runs.accelerator_s),
        **{name: column.sum() for name, column in counts.items()},
        seconds=weighted(runs.seconds, runs.accelerators.cast("float64")),
        seconds_by_jobs=runs.seconds.mean(),
    )
    return ordered(found, asked)
