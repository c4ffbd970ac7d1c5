"""ETT%, idleness% and failure%: they sum to 100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import Filter, filtered, hours, ordered
from headway.ledger.leaves import EFFECTIVE

if TYPE_CHECKING:
    import ibis.expr.types as ir

ETT_DIMENSIONS: tuple[str, ...] = ()
SIDES = ("ett", "idleness", "failure")


def ett_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """First for each run, so that runs and accelerator-hours can be weighed alike."""
    rows = filtered(tables, "hours", "hour", asked)
    failed = rows.leaf.startswith("failure.") | rows.leaf.startswith("recover.")
    trained = rows.leaf == EFFECTIVE
    sides = {"ett": trained, "failure": failed, "idleness": ~(trained | failed)}
    runs = rows.agg(
        by=list(dict.fromkeys([*asked.by, "run_id"])),
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
    found = runs.agg(
        by=list(asked.by),
        jobs=runs.count(),
        accelerator_hours=hours(runs.total_s),
        **shares,
        **means,
    )
    return ordered(found, asked)
