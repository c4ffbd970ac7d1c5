"""How long something takes over time: half of the runs, nine of ten, the mean."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries import build_query
from headway.serve.panels.shown import Column, table
from headway.serve.source import Source
from headway.serve.wanted import PageQuery


def percentiles_over_time(
    source: Source, wanted: PageQuery, name: str, *more: Column
) -> dict[str, Any]:
    """By the answers to the question of that name; `more` stands beside."""
    period = source.period(wanted)
    rows = source.rows(build_query(name, source.asked(wanted, period)), wanted)
    half, nine = f"{name}_p50_s", f"{name}_p90_s"
    columns = [
        Column(period, period, "period"),
        Column(half, "median", "seconds"),
        Column(nine, "nine of ten", "seconds"),
        Column(f"{name}_s_by_jobs", "mean", "seconds"),
        *more,
    ]
    return table(columns, rows, plot={"kind": "lines", "x": period, "lines": [half, nine]})
