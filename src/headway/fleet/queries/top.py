"""Where accelerator-hours are lost most: the leaves that are not training, the largest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.fleet.queries.slices import TIME_GRAINS, Filter, filtered, hours, ordered
from headway.ledger.leaves import EFFECTIVE

if TYPE_CHECKING:
    import ibis.expr.types as ir

TOP_DIMENSIONS = ("leaf",)


def top_query(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    """`percent` is of all that the same runs and periods had, whatever was lost there."""
    slices = [one for one in asked.by if one != "leaf"]
    run = ["run_id", *(one for one in slices if one in TIME_GRAINS)]
    rows = filtered(tables, "hours", "hour", asked)
    runs = rows.agg(
        by=list(dict.fromkeys([*slices, *run])),
        lived_s=rows.seconds.sum(),
        lived_a=rows.accelerator_s.sum(),
    )
    rows = rows.filter(rows.leaf != EFFECTIVE)
    lost = rows.agg(
        by=list(dict.fromkeys([*asked.by, "run_id"])),
        seconds=rows.seconds.sum(),
        accelerator_s=rows.accelerator_s.sum(),
    ).join(runs.select(*run, "lived_s"), run)
    found = lost.agg(
        by=list(asked.by),
        jobs=lost.count(),
        accelerator_hours=hours(lost.accelerator_s),
        share=(100.0 * lost.seconds / lost.lived_s).sum(),
    )
    whole = runs.agg(by=slices, all_jobs=runs.count(), all_s=runs.lived_a.sum())
    joined = found.join(whole, [found[one].identical_to(whole[one]) for one in slices] or True)
    shown = joined.select(
        *(found[one] for one in found.columns if one != "share"),
        percent=360000.0 * found.accelerator_hours / whole.all_s,
        percent_by_jobs=found.share / whole.all_jobs,
    )
    return ordered(shown, asked)
