"""Simulate a fleet day by day, and write it to a store together with the ground truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.sim.fleet.account import Account, make_account
from headway.sim.fleet.jobs import Attempts, Jobs, draw_attempts, draw_jobs
from headway.sim.fleet.scenario import FleetScenario, host_name, slice_name

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store


TRUTH_FILE = "truth.json"
ROWS = 2_000_000  # of buckets in one write, about: what is in memory at a time
LEAVES_AN_HOUR = 8  # about


def draw_day(plan: FleetScenario, number: int) -> tuple[Jobs, Account]:
    """The jobs that begin on a day, to their end; the same whatever was drawn before."""
    random = np.random.default_rng([plan.seed, number])
    jobs = draw_jobs(plan, number, random)
    return jobs, make_account(plan, jobs, draw_attempts(plan, jobs, random), random)


def simulate(
    store: Store, plan: FleetScenario, tell: Callable[[int, int], None] = lambda days, rows: None
) -> dict[str, int]:
    """Write the fleet; how many rows each table got. `tell` hears of days and bucket rows done."""
    from headway.sim.fleet.tables import store_tables

    counts: dict[str, int] = {}
    for last, jobs, so_far in _parts(plan):
        random = np.random.default_rng([plan.seed, last, 0x4A17])
        made = store_tables(plan, jobs, so_far, random)
        store.write(made, as_of=plan.end)
        for name, table in made.items():
            counts[name] = counts.get(name, 0) + table.num_rows
        tell(last + 1, counts["buckets"])
    store.files.put(TRUTH_FILE, json.dumps(ground_truth(plan), indent=1).encode())
    return counts


def _parts(plan: FleetScenario) -> Iterator[tuple[int, Jobs, Account]]:
    """Jobs of some days, or of a part of a day, such that one write is of a size for memory."""
    held: list[tuple[Jobs, Account]] = []
    rows = 0.0
    for number in range(plan.days):
        jobs, full = draw_day(plan, number)
        for piece in _pieces(jobs, full.known(plan.end)):
            held.append(piece)
            rows += _size(*piece)
            if rows >= ROWS:
                yield number, *_concatenate(held)
                held, rows = [], 0.0
    if held:
        yield plan.days - 1, *_concatenate(held)


def _size(jobs: Jobs, so_far: Account) -> float:
    hours = so_far.seconds.sum(axis=1) / 3600 + 2
    return float((hours * jobs.accelerators[so_far.lives.job]).sum()) * LEAVES_AN_HOUR


def _pieces(jobs: Jobs, so_far: Account) -> Iterator[tuple[Jobs, Account]]:
    """A day in as many parts as it needs; those without a job are left out."""
    parts = int(_size(jobs, so_far) // ROWS) + 1
    for index in np.array_split(np.arange(jobs.start.size), parts):
        if index.size:
            rows = np.flatnonzero(np.isin(so_far.lives.job, index))
            lives = _select_attempts(so_far.lives, rows, -int(index[0]))
            yield _select_jobs(jobs, index), Account(lives, so_far.seconds[rows])


def _concatenate(held: list[tuple[Jobs, Account]]) -> tuple[Jobs, Account]:
    sizes = np.cumsum([0, *(jobs.start.size for jobs, _ in held)])
    lives = [
        _select_attempts(part.lives, np.arange(part.lives.job.size), int(before))
        for before, (_, part) in zip(sizes[:-1], held, strict=True)
    ]
    return (
        Jobs(**_join_columns([vars(jobs) for jobs, _ in held])),
        Account(
            Attempts(**_join_columns([vars(one) for one in lives])),
            np.concatenate([part.seconds for _, part in held]),
        ),
    )


def _join_columns(parts: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        found[name] = _join_columns(values) if isinstance(first, dict) else np.concatenate(values)
    return found


def _select_jobs(jobs: Jobs, index: Any) -> Jobs:
    fields = {name: values[index] for name, values in jobs.fields.items()}
    told = {name: values[index] for name, values in vars(jobs).items() if name != "fields"}
    return Jobs(**told, fields=fields)


def _select_attempts(lives: Attempts, rows: Any, shift: int) -> Attempts:
    told = {name: values[rows] for name, values in vars(lives).items()}
    told["job"] = told["job"] + shift
    return Attempts(**told)


def ground_truth(plan: FleetScenario) -> dict[str, Any]:
    """What was planted, for those who try to find it."""
    return {
        "seed": plan.seed,
        "jobs": plan.jobs,
        "days": plan.days,
        "scale": plan.scale,
        "begin": plan.begin,
        "end": plan.end,
        "regressions": [
            {
                "team": slice_name(one.slice)[0],
                "model": slice_name(one.slice)[1],
                "at": one.at,
                "day": (one.at - plan.begin) / 86400,
                "bucket": one.bucket,
                "points": one.points,
                "field": one.field,
                "value": one.value,
            }
            for one in plan.planted
        ],
        "lemons": [host_name(host) for host in sorted(plan.lemons)],
    }
