"""Queries of the web pages beyond those of `headway fleet`, as Ibis expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headway.fleet.queries.dimensions import Filter, filtered, hours, join_attempts

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from headway.fleet.store.reader import QueryFn


Tables = Mapping[str, "ir.Table"]


PREEMPTION = "preemption"
SEARCH_FIELDS = ("run", "run_id", "job", "user", "team", "model")
SORTS = ("started_at", "ett_percent", "accelerator_hours", "lost_hours", "time_to_start_s")


def field_values(column: str, limit: int) -> QueryFn:
    """Values of a column of `runs`, most frequent first."""

    def query(tables: Tables) -> ir.Table:
        runs = tables["runs"]
        runs = runs.filter(runs[column].notnull())
        result = runs.group_by(column).agg(runs=runs.count())
        return result.order_by([result.runs.desc(), result[column]]).limit(limit)

    return query


def bucket_hours(filter_: Filter, buckets: Sequence[str], *by: str) -> QueryFn:
    """Accelerator-hours in the given buckets; filtering the buckets first is much faster."""

    def query(tables: Tables) -> ir.Table:
        selected = tables["hours"]
        selected = selected.filter(selected.leaf.isin(list(buckets)))
        rows = filtered(
            {**_select_tables(tables, "runs"), "hours": selected}, "hours", "hour", filter_
        )
        result = rows.agg(
            by=list(by), jobs=rows.run_id.nunique(), accelerator_hours=hours(rows.accelerator_s)
        )
        return result.order_by(list(by)) if by else result

    return query


def _select_tables(tables: Tables, *names: str) -> dict[str, ir.Table]:
    return {name: tables[name] for name in names}


def start_stages(filter_: Filter, buckets: Sequence[str], *by: str) -> QueryFn:
    """Seconds in the stages of the start, over the matching runs that trained."""

    def query(tables: Tables) -> ir.Table:
        runs = filtered(tables, "runs", "started_at", filter_)
        runs = runs.filter(runs.time_to_start_s.notnull()).select("run_id", *by)
        rows = tables["hours"]
        rows = rows.filter(rows.leaf.isin(list(buckets))).join(runs, "run_id")
        return rows.agg(by=[*by, "leaf"], seconds=rows.seconds.sum())

    return query


def release_starts(filter_: Filter, release: str) -> QueryFn:
    """The most recent values of a release field, newest first."""

    def query(tables: Tables) -> ir.Table:
        runs = filtered(tables, "runs", "started_at", filter_._replace(by=(release,)))
        runs = runs.filter(runs[release].notnull() & runs.time_to_start_s.notnull())
        result = runs.group_by(release).agg(
            first=runs.started_at.min(),
            jobs=runs.count(),
            tts_s_by_jobs=runs.time_to_start_s.mean(),
            tts_p50_s=runs.time_to_start_s.quantile(0.5),
            tts_p90_s=runs.time_to_start_s.quantile(0.9),
        )
        return result.order_by([result["first"].desc(), result[release]]).limit(filter_.limit or 24)

    return query


def preemption_rows(filter_: Filter, *, skip: int, limit: int) -> QueryFn:
    """Preemptions with their run and cost, newest first."""

    def query(tables: Tables) -> ir.Table:
        rows = filtered(tables, "failures", "at", filter_)
        rows = rows.filter(rows.category == PREEMPTION)
        runs = tables["runs"].select("run_id", "run", "team", "model")
        rows = rows.join(runs, "run_id")
        cost = rows.lost_s + rows.time_to_recover_s.fill_null(0.0)
        result = rows.select(
            *("at", "run_id", "run", "team", "model", "attempt", "accelerators", "decision"),
            *("lost_s", "time_to_recover_s"),
            accelerator_hours=rows.accelerators * cost / 3600.0,
        )
        return result.order_by([result["at"].desc(), result.run_id]).limit(limit, offset=skip)

    return query


def matching_runs(filter_: Filter, search: Mapping[str, str], *, skip: int, limit: int) -> QueryFn:
    """Runs that match the search, in the requested order."""

    def query(tables: Tables) -> ir.Table:
        rows = _filtered_runs(tables, filter_, search)
        result = rows.select(
            *("run_id", "run", "team", "model", "started_at", "running", "outcome", "wall_s"),
            *("accelerators", "ett_percent", "accelerator_hours", "lost_hours"),
            *("time_to_start_s", "attempts", "failures", "failures_beside"),
        )
        order = result[search.get("sort", SORTS[0])].desc(nulls_first=False)
        return result.order_by([order, result.run_id]).limit(limit, offset=skip)

    return query


def count_runs(filter_: Filter, search: Mapping[str, str]) -> QueryFn:
    """The number of runs that match the search."""

    def query(tables: Tables) -> ir.Table:
        rows = _filtered_runs(tables, filter_, search)
        return rows.agg(runs=rows.count())

    return query


def _filtered_runs(tables: Tables, filter_: Filter, search: Mapping[str, str]) -> ir.Table:
    import ibis

    rows = join_attempts(tables, filtered(tables, "runs", "started_at", filter_))
    rows = _with_failure_counts(tables, rows)
    wall = rows.wall_s.nullif(0.0)
    rows = rows.mutate(
        ett_percent=100.0 * rows.effective_s / wall,
        accelerator_hours=rows.accelerator_s / 3600.0,
        lost_hours=rows.lost_accelerator_s / 3600.0,
    )
    text = search.get("q", "").lower()
    if text:
        matches = [rows[name].fill_null("").lower().contains(text) for name in SEARCH_FIELDS]
        rows = rows.filter(ibis.or_(*matches))
    if search.get("outcome"):
        rows = rows.filter(rows.outcome == search["outcome"])
    failures = tables["failures"]
    for name in ("category", "host"):
        if search.get(name):
            failures = failures.filter(failures[name] == search[name])
    if search.get("category") or search.get("host"):
        rows = rows.semi_join(failures, "run_id")
    return rows


def _with_failure_counts(tables: Tables, rows: ir.Table) -> ir.Table:
    """Runs with their numbers of failures; for rows of schema 1 these are counted."""
    failures = tables["failures"]
    counts = failures.agg(by="run_id", infra=failures.count(where=failures.owner == "infra"))
    counts = counts.rename(failed_id="run_id")
    rows = rows.left_join(counts, rows.run_id == counts.failed_id)
    old = rows.failures_user.isnull()
    count = old.ifelse(rows.infra.fill_null(0), rows.failures)
    others = rows.failures_user + rows.failures_scheduler + rows.failures_ambiguous
    return rows.mutate(failures=count, failures_beside=old.ifelse(rows.failures - count, others))


def rows_of_run(table: str, run_id: str, order: str, limit: int) -> QueryFn:
    """The rows of one run in one table."""

    def query(tables: Tables) -> ir.Table:
        rows = tables[table]
        rows = rows.filter(rows.run_id == run_id)
        keys = [order, *(name for name in ("attempt", "host", "place") if name in rows.columns)]
        return rows.order_by(list(dict.fromkeys(keys))).limit(limit)

    return query


def buckets_of_run(run_id: str, *by: str) -> QueryFn:
    """Seconds of one run by bucket."""

    def query(tables: Tables) -> ir.Table:
        rows = tables["hours"]
        rows = rows.filter(rows.run_id == run_id)
        result = rows.agg(by=[*by, "leaf"], seconds=rows.seconds.sum())
        return result.order_by([*by, result.seconds.desc()])

    return query
