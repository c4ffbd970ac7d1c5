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
ROWS = 2_000_000  # approximate rows of `buckets` per write; limits memory use
BUCKETS_PER_HOUR = 8  # approximate


def draw_day(scenario: FleetScenario, number: int) -> tuple[Jobs, Account]:
    """The complete jobs that begin on a day; independent of other draws."""
    random = np.random.default_rng([scenario.seed, number])
    jobs = draw_jobs(scenario, number, random)
    return jobs, make_account(scenario, jobs, draw_attempts(scenario, jobs, random), random)


def simulate(
    store: Store,
    scenario: FleetScenario,
    progress: Callable[[int, int], None] = lambda days, rows: None,
) -> dict[str, int]:
    """Write the fleet and return the rows per table; `progress` receives days and bucket rows."""
    from headway.sim.fleet.tables import store_tables

    counts: dict[str, int] = {}
    for last, jobs, account in _parts(scenario):
        random = np.random.default_rng([scenario.seed, last, 0x4A17])
        tables = store_tables(scenario, jobs, account, random)
        store.write(tables, as_of=scenario.end)
        for name, table in tables.items():
            counts[name] = counts.get(name, 0) + table.num_rows
        progress(last + 1, counts["buckets"])
    store.files.put(TRUTH_FILE, json.dumps(ground_truth(scenario), indent=1).encode())
    return counts


def _parts(scenario: FleetScenario) -> Iterator[tuple[int, Jobs, Account]]:
    """Jobs in parts of at most one write: some days, or a part of a day."""
    parts: list[tuple[Jobs, Account]] = []
    rows = 0.0
    for number in range(scenario.days):
        jobs, account = draw_day(scenario, number)
        for piece in _pieces(jobs, account.known(scenario.end)):
            parts.append(piece)
            rows += _size(*piece)
            if rows >= ROWS:
                yield number, *_concatenate(parts)
                parts, rows = [], 0.0
    if parts:
        yield scenario.days - 1, *_concatenate(parts)


def _size(jobs: Jobs, account: Account) -> float:
    hours = account.seconds.sum(axis=1) / 3600 + 2
    return float((hours * jobs.accelerators[account.attempts.job]).sum()) * BUCKETS_PER_HOUR


def _pieces(jobs: Jobs, account: Account) -> Iterator[tuple[Jobs, Account]]:
    """Split a day into as many parts as necessary, without empty ones."""
    count = int(_size(jobs, account) // ROWS) + 1
    for index in np.array_split(np.arange(jobs.start.size), count):
        if index.size:
            rows = np.flatnonzero(np.isin(account.attempts.job, index))
            attempts = _select_attempts(account.attempts, rows, -int(index[0]))
            yield _select_jobs(jobs, index), Account(attempts, account.seconds[rows])


def _concatenate(parts: list[tuple[Jobs, Account]]) -> tuple[Jobs, Account]:
    sizes = np.cumsum([0, *(jobs.start.size for jobs, _ in parts)])
    attempts = [
        _select_attempts(part.attempts, np.arange(part.attempts.job.size), int(before))
        for before, (_, part) in zip(sizes[:-1], parts, strict=True)
    ]
    return (
        Jobs(**_join_columns([vars(jobs) for jobs, _ in parts])),
        Account(
            Attempts(**_join_columns([vars(selected) for selected in attempts])),
            np.concatenate([part.seconds for _, part in parts]),
        ),
    )


def _join_columns(parts: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        columns[name] = _join_columns(values) if isinstance(first, dict) else np.concatenate(values)
    return columns


def _select_jobs(jobs: Jobs, index: Any) -> Jobs:
    fields = {name: values[index] for name, values in jobs.fields.items()}
    columns = {name: values[index] for name, values in vars(jobs).items() if name != "fields"}
    return Jobs(**columns, fields=fields)


def _select_attempts(attempts: Attempts, rows: Any, shift: int) -> Attempts:
    columns = {name: values[rows] for name, values in vars(attempts).items()}
    columns["job"] = columns["job"] + shift
    return Attempts(**columns)


def ground_truth(scenario: FleetScenario) -> dict[str, Any]:
    """The planted regressions and lemon hosts, to evaluate detectors."""
    return {
        "seed": scenario.seed,
        "jobs": scenario.jobs,
        "days": scenario.days,
        "scale": scenario.scale,
        "begin": scenario.begin,
        "end": scenario.end,
        "regressions": [
            {
                "team": slice_name(regression.slice)[0],
                "model": slice_name(regression.slice)[1],
                "at": regression.at,
                "day": (regression.at - scenario.begin) / 86400,
                "bucket": regression.bucket,
                "points": regression.points,
                "field": regression.field,
                "value": regression.value,
            }
            for regression in scenario.planted
        ],
        "lemons": [host_name(host) for host in sorted(scenario.lemons)],
    }
