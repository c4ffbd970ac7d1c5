"""Load what the detectors need from a store: jobs of each slice, hosts and running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import UsageError
from headway.fleet.queries.dimensions import RUN_DIMENSIONS, Filter, filtered
from headway.fleet.regressions.cohorts import Floats, Series
from headway.fleet.regressions.running import SavedStep, in_loop, seconds_per_step, trains
from headway.fleet.store.reader import run_query
from headway.ledger.buckets import BUCKETS, UNKNOWN

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow

    from headway.fleet.store.parquet import Store


FIELDS = ("image", "torch", "python", "host_type", "accelerator", "cluster", "config", "code")
CONTROL_FIELDS = (
    "team",
    "model",
)  # jobs are compared within equal values, unless they define the slices
MIN_LOOP_S = 1200.0  # minimum seconds of loop time in an hour
BLAMED_OWNERS = ("infra", "ambiguous")  # owners of failures that a host may have caused


@dataclass(frozen=True)
class Jobs:
    """The jobs of a store in one series, the slice of each job, and notes."""

    series: Series
    slices: NDArray[np.str_]  # a row per job, a column per group-by field
    run_ids: NDArray[np.str_]
    now: float  # time up to which the store has data
    notes: tuple[str, ...]

    def by_slice(self) -> list[Series]:
        """A series per slice, sorted by name."""
        if not self.slices.shape[0]:
            return []
        names, codes = np.unique(self.slices, axis=0, return_inverse=True)
        return [
            replace(self.series.where(codes.reshape(-1) == number), slice=tuple(map(str, name)))
            for number, name in enumerate(names)
        ]


def read_jobs(store: Store, filter_: Filter) -> Jobs:
    """The jobs that began in the time range, with their seconds by bucket."""
    for name in filter_.by:
        if name not in RUN_DIMENSIONS:
            raise UsageError(
                f"regressions cannot be grouped by {name!r}; "
                f"available are {', '.join(RUN_DIMENSIONS)}",
                code="split-unknown",
                split=name,
            )
    runs_result = run_query(store, lambda tables: _runs(tables, filter_))
    hours_result = run_query(
        store, lambda tables: _seconds_by_bucket(tables, filter_), since=filter_.since
    )
    runs = runs_result.rows
    ids = runs["run_id"].to_numpy(zero_copy_only=False).astype(str)
    seconds, weighted = _by_run(runs["run_id"], hours_result.rows)
    wall = seconds.sum(axis=1)
    accelerators = np.divide(weighted, wall, out=np.ones_like(wall), where=wall > 0)
    columns = {name: _text(runs, name) for name in _columns(filter_)}
    fields = {name: columns[name] for name in (*FIELDS, *control_fields(filter_))}
    start = _epoch(runs, "started_at")
    end = _epoch(runs, "ended_at")
    return Jobs(
        series=Series(
            (),
            BUCKETS,
            start,
            accelerators,
            seconds,
            runs["running"].to_numpy(zero_copy_only=False).astype(bool),
            fields,
        ),
        slices=np.array([columns[name] for name in filter_.by]).T.reshape(
            len(ids), len(filter_.by)
        ),
        run_ids=ids,
        now=float(end.max()) if end.size else 0.0,
        notes=tuple(dict.fromkeys((*runs_result.notes, *hours_result.notes))),
    )


def control_fields(filter_: Filter) -> tuple[str, ...]:
    """Control fields that do not define the slices."""
    return tuple(name for name in CONTROL_FIELDS if name not in filter_.by)


def _columns(filter_: Filter) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*FIELDS, *CONTROL_FIELDS, *filter_.by)))


def _runs(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    rows = filtered(tables, "runs", "started_at", filter_)
    columns = ("run_id", "started_at", "ended_at", "running", *_columns(filter_))
    return rows.select(*dict.fromkeys(columns)).order_by(["started_at", "run_id"])


def _seconds_by_bucket(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    runs = filtered(tables, "runs", "started_at", filter_)
    rows = tables["hours"].semi_join(runs, "run_id")
    return rows.group_by(["run_id", "leaf"]).agg(
        seconds=rows.seconds.sum(), accelerator_s=rows.accelerator_s.sum()
    )


def _by_run(ids: pyarrow.ChunkedArray, rows: pyarrow.Table) -> tuple[Floats, Floats]:
    """Seconds by run and bucket, and accelerator-seconds by run."""
    run = _index(rows["run_id"], ids, -1)
    bucket = _index(rows["leaf"], BUCKETS, BUCKETS.index(UNKNOWN))
    is_known = run >= 0  # a run may have arrived between the two queries
    run, bucket = run[is_known], bucket[is_known]
    seconds = rows["seconds"].to_numpy()[is_known]
    weighted = rows["accelerator_s"].to_numpy()[is_known]
    table = np.bincount(run * len(BUCKETS) + bucket, seconds, len(ids) * len(BUCKETS))
    by_leaf = table.reshape(len(ids), len(BUCKETS)).astype(np.float64)
    return by_leaf, np.bincount(run, weighted, len(ids)).astype(np.float64)


def _index(values: pyarrow.ChunkedArray, vocabulary: Any, default: int) -> NDArray[np.int64]:
    """The index of each value in a vocabulary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    vocabulary_array = (
        vocabulary.combine_chunks()
        if isinstance(vocabulary, pa.ChunkedArray)
        else pa.array(vocabulary)
    )
    indices = pc.fill_null(pc.index_in(values, value_set=vocabulary_array), default)
    return np.asarray(indices.to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class Hosts:
    """Hosts with their hours, and the runs that failed there for reasons a host may have caused."""

    names: list[str]
    failures: Floats
    hours: Floats


def read_hosts(store: Store, filter_: Filter) -> Hosts:
    """The hosts of the time range; repeated failures of a run on a host count once."""
    used_hosts = run_query(store, lambda tables: _used_hosts(tables, filter_)).rows
    failed_hosts = run_query(
        store, lambda tables: _failures_by_host(tables, filter_), since=filter_.since
    ).rows
    counts = dict(
        zip(failed_hosts["host"].to_pylist(), failed_hosts["runs"].to_pylist(), strict=True)
    )
    names = used_hosts["host"].to_pylist()
    return Hosts(
        names,
        np.array([counts.get(name, 0) for name in names], dtype=np.float64),
        used_hosts["hours"].to_numpy(),
    )


def _used_hosts(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    rows = filtered(tables, "nodes", "started_at", filter_)
    return rows.group_by("host").agg(hours=rows.wall_s.sum() / 3600.0).order_by("host")


def _failures_by_host(tables: Mapping[str, ir.Table], filter_: Filter) -> ir.Table:
    rows = filtered(tables, "failures", "at", filter_)
    rows = rows.filter(rows.host.notnull() & rows.owner.isin(BLAMED_OWNERS))
    return rows.group_by("host").agg(runs=rows.run_id.nunique())


def read_shares(store: Store, run_ids: list[str], filter_: Filter) -> dict[str, list[float]]:
    """The effective share of each hour of these runs, in order, without the first training hour."""
    rows = run_query(store, lambda tables: _shares(tables, run_ids), since=filter_.since).rows
    shares: dict[str, list[float]] = {}
    columns = (rows[name].to_pylist() for name in ("run_id", "whole", "trained"))
    for run, total, trained in zip(*columns, strict=True):
        shares_of_run = shares.setdefault(run, [])
        if total >= MIN_LOOP_S and (shares_of_run or trained > 0):
            shares_of_run.append(trained / total)
    return {run: shares_of_run[1:] for run, shares_of_run in shares.items()}


def _shares(tables: Mapping[str, ir.Table], run_ids: list[str]) -> ir.Table:
    rows = tables["hours"]
    loop = [bucket for bucket in BUCKETS if in_loop(bucket)]
    rows = rows.filter(rows.run_id.isin(run_ids) & rows.leaf.isin(loop))
    trained = rows.leaf.isin([bucket for bucket in BUCKETS if trains(bucket)])
    result = rows.group_by(["run_id", "hour"]).agg(
        whole=rows.seconds.sum(), trained=rows.seconds.sum(where=trained).fill_null(0.0)
    )
    return result.order_by(["run_id", "hour"]).select("run_id", "whole", "trained")


def read_paces(store: Store, run_ids: list[str], filter_: Filter) -> dict[str, list[float]]:
    """Seconds per step of these runs, from save to save within an attempt."""
    rows = run_query(store, lambda tables: _saves(tables, run_ids), since=filter_.since).rows
    saves: dict[str, list[SavedStep]] = {}
    columns = (rows[name].to_pylist() for name in ("attempt", "accelerators", "at", "step"))
    for run, *fields in zip(rows["run_id"].to_pylist(), *columns, strict=True):
        saves.setdefault(run, []).append(SavedStep(*fields))
    return {run: seconds_per_step(saves_of_run) for run, saves_of_run in saves.items()}


def _saves(tables: Mapping[str, ir.Table], run_ids: list[str]) -> ir.Table:
    rows = tables["checkpoints"]
    rows = rows.filter(rows.run_id.isin(run_ids))
    result = rows.order_by(["run_id", "attempt", "at", "step"])
    return result.select("run_id", "attempt", "accelerators", "at", "step")


def _text(rows: pyarrow.Table, name: str) -> NDArray[np.str_]:
    """A column as strings; unknown values are `-`."""
    return np.array([value or "-" for value in rows[name].to_pylist()], dtype=np.str_)


def _epoch(rows: pyarrow.Table, name: str) -> Floats:
    values: Any = rows[name].to_numpy(zero_copy_only=False)
    return np.asarray(values.astype("datetime64[us]").astype(np.int64) / 1e6)
