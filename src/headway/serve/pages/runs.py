"""The list of runs."""

from __future__ import annotations

from typing import Any

from headway.fleet.queries import pages
from headway.serve.pages.panel import Column, Page, Panel, table
from headway.serve.query import PageQuery
from headway.serve.sources import Source

ROWS_PER_PAGE = 50


def run_list(source: Source, query: PageQuery) -> dict[str, Any]:
    """Runs that match the search and filters."""
    filter_, parameters = source.filter_for(query), dict(query.parameters)
    skip = (query.page - 1) * ROWS_PER_PAGE
    rows = source.rows(
        pages.matching_runs(filter_, parameters, skip=skip, limit=ROWS_PER_PAGE), query
    )
    total = source.rows(pages.count_runs(filter_, parameters), query)[0]["runs"]
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
        Column("failures", "infra failures", "count"),
        Column("failures_beside", "other failures", "count"),
        Column("run_id", "id", "id"),
    ]
    return table(
        columns,
        rows,
        paging={"page": query.page, "rows": ROWS_PER_PAGE, "of": total},
        sorts={"now": query.get("sort", pages.SORTS[0]), "all": list(pages.SORTS)},
    )


RUNS_PAGE = Page(
    "/runs",
    "Runs",
    "Search by name, id, job, user, team or model.",
    (Panel("runs", "Runs", "", "table", run_list),),
    ("q", "sort", "page", "category", "host", "outcome"),
)
