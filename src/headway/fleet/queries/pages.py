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


def field_values(column: str, most: int) -> QueryFn:
    """What a field of runs is, most frequent first."""

    def ask(tables: Tables) -> ir.Table:
        runs = tables["runs"]
        runs = runs.filter(runs[column].notnull())
        found = runs.group_by(column).agg(runs=runs.count())
        return found.order_by([found.runs.desc(), found[column]]).limit(most)

    return ask


def bucket_hours(asked: Filter, leaves: Sequence[str], *by: str) -> QueryFn:
    """Accelerator-hours in some leaves; those that were asked for only: that is much faster."""

    def ask(tables: Tables) -> ir.Table:
        chosen = tables["hours"]
        chosen = chosen.filter(chosen.leaf.isin(list(leaves)))
        rows = filtered({**_select_tables(tables, "runs"), "hours": chosen}, "hours", "hour", asked)
        found = rows.agg(
            by=list(by), jobs=rows.run_id.nunique(), accelerator_hours=hours(rows.accelerator_s)
        )
        return found.order_by(list(by)) if by else found

    return ask


def _select_tables(tables: Tables, *names: str) -> dict[str, ir.Table]:
    return {name: tables[name] for name in names}


def start_stages(asked: Filter, leaves: Sequence[str], *by: str) -> QueryFn:
    """Seconds of the stages of the start, over the runs that began then and trained."""

    def ask(tables: Tables) -> ir.Table:
        runs = filtered(tables, "runs", "started_at", asked)
        runs = runs.filter(runs.time_to_start_s.notnull()).select("run_id", *by)
        rows = tables["hours"]
        rows = rows.filter(rows.leaf.isin(list(leaves))).join(runs, "run_id")
        return rows.agg(by=[*by, "leaf"], seconds=rows.seconds.sum())

    return ask


def release_starts(asked: Filter, release: str) -> QueryFn:
    """The values of a release field, in the order in which they came; the last ones."""

    def ask(tables: Tables) -> ir.Table:
        runs = filtered(tables, "runs", "started_at", asked._replace(by=(release,)))
        runs = runs.filter(runs[release].notnull() & runs.time_to_start_s.notnull())
        found = runs.group_by(release).agg(
            first=runs.started_at.min(),
            jobs=runs.count(),
            tts_s_by_jobs=runs.time_to_start_s.mean(),
            tts_p50_s=runs.time_to_start_s.quantile(0.5),
            tts_p90_s=runs.time_to_start_s.quantile(0.9),
        )
        return found.order_by([found["first"].desc(), found[release]]).limit(asked.limit or 24)

    return ask


def preemption_rows(asked: Filter, *, skip: int, most: int) -> QueryFn:
    """Each one with its run and its price, the newest first."""

    def ask(tables: Tables) -> ir.Table:
        rows = filtered(tables, "failures", "at", asked)
        rows = rows.filter(rows.category == PREEMPTION)
        runs = tables["runs"].select("run_id", "run", "team", "model")
        rows = rows.join(runs, "run_id")
        paid = rows.lost_s + rows.time_to_recover_s.fill_null(0.0)
        told = rows.select(
            *("at", "run_id", "run", "team", "model", "attempt", "accelerators", "decision"),
            *("lost_s", "time_to_recover_s"),
            accelerator_hours=rows.accelerators * paid / 3600.0,
        )
        return told.order_by([told["at"].desc(), told.run_id]).limit(most, offset=skip)

    return ask


def matching_runs(asked: Filter, told: Mapping[str, str], *, skip: int, most: int) -> QueryFn:
    """The runs that began then and hold what is searched for, as a list."""

    def ask(tables: Tables) -> ir.Table:
        rows = _filtered_runs(tables, asked, told)
        shown = rows.select(
            *("run_id", "run", "team", "model", "started_at", "running", "outcome", "wall_s"),
            *("accelerators", "ett_percent", "accelerator_hours", "lost_hours"),
            *("time_to_start_s", "attempts", "failures", "failures_beside"),
        )
        order = shown[told.get("sort", SORTS[0])].desc(nulls_first=False)
        return shown.order_by([order, shown.run_id]).limit(most, offset=skip)

    return ask


def count_runs(asked: Filter, told: Mapping[str, str]) -> QueryFn:
    """How many they are."""

    def ask(tables: Tables) -> ir.Table:
        rows = _filtered_runs(tables, asked, told)
        return rows.agg(runs=rows.count())

    return ask


def _filtered_runs(tables: Tables, asked: Filter, told: Mapping[str, str]) -> ir.Table:
    import ibis

    rows = join_attempts(tables, filtered(tables, "runs", "started_at", asked))
    rows = _with_failure_counts(tables, rows)
    wall = rows.wall_s.nullif(0.0)
    rows = rows.mutate(
        ett_percent=100.0 * rows.effective_s / wall,
        accelerator_hours=rows.accelerator_s / 3600.0,
        lost_hours=rows.lost_accelerator_s / 3600.0,
    )
    text = told.get("q", "").lower()
    if text:
        holds = [rows[name].fill_null("").lower().contains(text) for name in SEARCH_FIELDS]
        rows = rows.filter(ibis.or_(*holds))
    if told.get("outcome"):
        rows = rows.filter(rows.outcome == told["outcome"])
    failed = tables["failures"]
    for name in ("category", "host"):
        if told.get(name):
            failed = failed.filter(failed[name] == told[name])
    if told.get("category") or told.get("host"):
        rows = rows.semi_join(failed, "run_id")
    return rows


def _with_failure_counts(tables: Tables, rows: ir.Table) -> ir.Table:
    """Runs with the number of their failures; of rows of schema 1 it is counted."""
    failed = tables["failures"]
    counts = failed.agg(by="run_id", infra=failed.count(where=failed.owner == "infra"))
    counts = counts.rename(failed_id="run_id")
    rows = rows.left_join(counts, rows.run_id == counts.failed_id)
    old = rows.failures_user.isnull()
    counted = old.ifelse(rows.infra.fill_null(0), rows.failures)
    others = rows.failures_user + rows.failures_scheduler + rows.failures_ambiguous
    return rows.mutate(
        failures=counted, failures_beside=old.ifelse(rows.failures - counted, others)
    )


def rows_of_run(table: str, run_id: str, order: str, most: int) -> QueryFn:
    """The rows of one run in one table."""

    def ask(tables: Tables) -> ir.Table:
        rows = tables[table]
        rows = rows.filter(rows.run_id == run_id)
        keys = [order, *(name for name in ("attempt", "host", "place") if name in rows.columns)]
        return rows.order_by(list(dict.fromkeys(keys))).limit(most)

    return ask


def buckets_of_run(run_id: str, *by: str) -> QueryFn:
    """Where the time of one run went."""

    def ask(tables: Tables) -> ir.Table:
        rows = tables["hours"]
        rows = rows.filter(rows.run_id == run_id)
        found = rows.agg(by=[*by, "leaf"], seconds=rows.seconds.sum())
        return found.order_by([*by, found.seconds.desc()])

    return ask
