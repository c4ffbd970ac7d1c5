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
)  # unless they are the slices, jobs are compared with those of the same
MIN_LOOP_S = 1200.0  # seconds of an hour, for it to tell something
BLAMED_OWNERS = ("infra", "ambiguous")  # owners of failures that a host may be the cause of


@dataclass(frozen=True)
class Jobs:
    """The jobs of a store: all slices in one series, the slice of each, and notes."""

    series: Series
    slices: NDArray[np.str_]  # a row per job, a column per field of the split
    run_ids: NDArray[np.str_]
    now: float  # up to when the store knows
    notes: tuple[str, ...]

    def by_slice(self) -> list[Series]:
        """A series for each slice, in the order of their names."""
        if not self.slices.shape[0]:
            return []
        names, codes = np.unique(self.slices, axis=0, return_inverse=True)
        return [
            replace(self.series.where(codes.reshape(-1) == number), slice=tuple(map(str, name)))
            for number, name in enumerate(names)
        ]


def read_jobs(store: Store, asked: Filter) -> Jobs:
    """The jobs that began in that stretch of time, each with its seconds by leaf."""
    for one in asked.by:
        if one not in RUN_DIMENSIONS:
            raise UsageError(
                f"regressions cannot be split by {one!r}; they can by {', '.join(RUN_DIMENSIONS)}",
                code="split-unknown",
                split=one,
            )
    told = run_query(store, lambda tables: _runs(tables, asked))
    spent = run_query(store, lambda tables: _spent(tables, asked), since=asked.since)
    runs = told.rows
    ids = runs["run_id"].to_numpy(zero_copy_only=False).astype(str)
    seconds, weighted = _by_run(runs["run_id"], spent.rows)
    wall = seconds.sum(axis=1)
    accelerators = np.divide(weighted, wall, out=np.ones_like(wall), where=wall > 0)
    columns = {name: _text(runs, name) for name in _columns(asked)}
    fields = {name: columns[name] for name in (*FIELDS, *control_fields(asked))}
    start = _epoch(runs, "started_at")
    ended = _epoch(runs, "ended_at")
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
        slices=np.array([columns[name] for name in asked.by]).T.reshape(len(ids), len(asked.by)),
        run_ids=ids,
        now=float(ended.max()) if ended.size else 0.0,
        notes=tuple(dict.fromkeys((*told.notes, *spent.notes))),
    )


def control_fields(asked: Filter) -> tuple[str, ...]:
    """The fields that are held equal inside a slice."""
    return tuple(name for name in CONTROL_FIELDS if name not in asked.by)


def _columns(asked: Filter) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*FIELDS, *CONTROL_FIELDS, *asked.by)))


def _runs(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    rows = filtered(tables, "runs", "started_at", asked)
    wanted = ("run_id", "started_at", "ended_at", "running", *_columns(asked))
    return rows.select(*dict.fromkeys(wanted)).order_by(["started_at", "run_id"])


def _spent(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    chosen = filtered(tables, "runs", "started_at", asked)
    rows = tables["hours"].semi_join(chosen, "run_id")
    return rows.group_by(["run_id", "leaf"]).agg(
        seconds=rows.seconds.sum(), accelerator_s=rows.accelerator_s.sum()
    )


def _by_run(ids: pyarrow.ChunkedArray, rows: pyarrow.Table) -> tuple[Floats, Floats]:
    """Seconds by run and leaf, and accelerator-seconds by run."""
    run = _index(rows["run_id"], ids, -1)
    leaf = _index(rows["leaf"], BUCKETS, BUCKETS.index(UNKNOWN))
    known = run >= 0  # a run that came between the two questions is not told of
    run, leaf = run[known], leaf[known]
    seconds = rows["seconds"].to_numpy()[known]
    weighted = rows["accelerator_s"].to_numpy()[known]
    table = np.bincount(run * len(BUCKETS) + leaf, seconds, len(ids) * len(BUCKETS))
    by_leaf = table.reshape(len(ids), len(BUCKETS)).astype(np.float64)
    return by_leaf, np.bincount(run, weighted, len(ids)).astype(np.float64)


def _index(words: pyarrow.ChunkedArray, among: Any, otherwise: int) -> NDArray[np.int64]:
    """Where each word stands among others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else pa.array(among)
    found = pc.fill_null(pc.index_in(words, value_set=values), otherwise)
    return np.asarray(found.to_numpy(), dtype=np.int64)


@dataclass(frozen=True)
class Hosts:
    """Each host, the runs that failed there for reasons that may be its own, and its hours."""

    names: list[str]
    failures: Floats
    hours: Floats


def read_hosts(store: Store, asked: Filter) -> Hosts:
    """The hosts of a stretch of time; a run that fails on a host again and again counts once."""
    used = run_query(store, lambda tables: _used(tables, asked)).rows
    failed = run_query(store, lambda tables: _failed(tables, asked), since=asked.since).rows
    counts = dict(zip(failed["host"].to_pylist(), failed["runs"].to_pylist(), strict=True))
    names = used["host"].to_pylist()
    return Hosts(
        names,
        np.array([counts.get(name, 0) for name in names], dtype=np.float64),
        used["hours"].to_numpy(),
    )


def _used(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    rows = filtered(tables, "nodes", "started_at", asked)
    return rows.group_by("host").agg(hours=rows.wall_s.sum() / 3600.0).order_by("host")


def _failed(tables: Mapping[str, ir.Table], asked: Filter) -> ir.Table:
    rows = filtered(tables, "failures", "at", asked)
    rows = rows.filter(rows.host.notnull() & rows.owner.isin(BLAMED_OWNERS))
    return rows.group_by("host").agg(runs=rows.run_id.nunique())


def read_shares(store: Store, run_ids: list[str], asked: Filter) -> dict[str, list[float]]:
    """The share of each hour of these runs that trained, in order; not of that of the start."""
    rows = run_query(store, lambda tables: _shares(tables, run_ids), since=asked.since).rows
    found: dict[str, list[float]] = {}
    columns = (rows[name].to_pylist() for name in ("run_id", "whole", "trained"))
    for run, whole, trained in zip(*columns, strict=True):
        line = found.setdefault(run, [])
        if whole >= MIN_LOOP_S and (line or trained > 0):
            line.append(trained / whole)
    return {run: line[1:] for run, line in found.items()}


def _shares(tables: Mapping[str, ir.Table], run_ids: list[str]) -> ir.Table:
    rows = tables["hours"]
    loop = [leaf for leaf in BUCKETS if in_loop(leaf)]
    rows = rows.filter(rows.run_id.isin(run_ids) & rows.leaf.isin(loop))
    trained = rows.leaf.isin([leaf for leaf in BUCKETS if trains(leaf)])
    found = rows.group_by(["run_id", "hour"]).agg(
        whole=rows.seconds.sum(), trained=rows.seconds.sum(where=trained).fill_null(0.0)
    )
    return found.order_by(["run_id", "hour"]).select("run_id", "whole", "trained")


def read_paces(store: Store, run_ids: list[str], asked: Filter) -> dict[str, list[float]]:
    """Seconds per step of these runs, hour by hour, from save to save of an attempt."""
    rows = run_query(store, lambda tables: _saves(tables, run_ids), since=asked.since).rows
    saves: dict[str, list[SavedStep]] = {}
    columns = (rows[name].to_pylist() for name in ("attempt", "accelerators", "at", "step"))
    for run, *told in zip(rows["run_id"].to_pylist(), *columns, strict=True):
        saves.setdefault(run, []).append(SavedStep(*told))
    return {run: seconds_per_step(line) for run, line in saves.items()}


def _saves(tables: Mapping[str, ir.Table], run_ids: list[str]) -> ir.Table:
    rows = tables["checkpoints"]
    rows = rows.filter(rows.run_id.isin(run_ids))
    found = rows.order_by(["run_id", "attempt", "at", "step"])
    return found.select("run_id", "attempt", "accelerators", "at", "step")


def _text(rows: pyarrow.Table, name: str) -> NDArray[np.str_]:
    """A column as words; what is not known is a dash."""
    return np.array([value or "-" for value in rows[name].to_pylist()], dtype=np.str_)


def _epoch(rows: pyarrow.Table, name: str) -> Floats:
    values: Any = rows[name].to_numpy(zero_copy_only=False)
    return np.asarray(values.astype("datetime64[us]").astype(np.int64) / 1e6)
