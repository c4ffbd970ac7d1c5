"""The list of runs."""

from __future__ import annotations

from typing import Any

from headway.serve import questions
from headway.serve.panels.shown import Column, table
from headway.serve.source import Source
from headway.serve.wanted import PageQuery

ROWS_PER_PAGE = 50  # of a page


def run_list(source: Source, wanted: PageQuery) -> dict[str, Any]:
    """Those that hold what is searched for."""
    asked, told = source.asked(wanted), dict(wanted.given)
    skip = (wanted.page - 1) * ROWS_PER_PAGE
    rows = source.rows(questions.matching_runs(asked, told, skip=skip, most=ROWS_PER_PAGE), wanted)
    total = source.rows(questions.count_runs(asked, told), wanted)[0]["runs"]
    columns = [
        Column("run", "run", "run"),
        Column("ett_percent", "ETT", "percent"),
        Column("outcome", "outcome", "outcome"),
        Column("team", "team"),
        Column("model", "model"),
        Column("started_at", "began", "time"),
        Column("wall_s", "wall time", "seconds"),
        Column("accelerators", "accelerators", "count"),
        Column("accelerator_hours", "accelerator-hours", "hours"),
        Column("lost_hours", "lost", "hours"),
        Column("time_to_start_s", "Time to Start", "seconds"),
        Column("attempts", "attempts", "count"),
        Column("failures", "failures of infra", "count"),
        Column("failures_beside", "other failures", "count"),
        Column("run_id", "id", "id"),
    ]
    return table(
        columns,
        rows,
        paging={"page": wanted.page, "rows": ROWS_PER_PAGE, "of": total},
        sorts={"now": wanted.get("sort", questions.SORTS[0]), "all": list(questions.SORTS)},
    )
