"""Planted regressions of simulated fleets: which are found, how soon, and at how many false alarms.

Every fleet has 100,000 jobs over 90 days in 50 slices, and in some of them, from a day on, jobs
lose 2 points of ETT. Each day every detector is shown what a store would know by then. An alarm is
counted once; it is true if it names a slice and the day of a regression that is there, within 3
days. For the plain threshold and for ruptures the setting is taken that finds most at no more than
one false alarm a week, of a row of settings: the same truth chose it, which favours them.

    python benchmarks/regressions.py [--fleets N] [--noise FACTOR] [--keep]

The noise of jobs, starts and days is assumed (headway/sim/fleet/defaults.py); `--noise 2`
doubles it. Running jobs that get worse on the way are measured beside it (running_jobs.py).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
from keep import keep  # noqa: E402
from peers import python  # noqa: E402
from running_jobs import Following, rows  # noqa: E402

from headway.fleet.regressions.cohorts import (  # noqa: E402
    Series,
    cap_weights,
    duration_bins,
    standardize_within_cohort,
)
from headway.fleet.regressions.findings import MIN_SHARE, ScanOptions, find  # noqa: E402
from headway.ledger.buckets import BUCKETS, EFFECTIVE  # noqa: E402
from headway.sim.fleet import defaults  # noqa: E402
from headway.sim.fleet.account import split_windows  # noqa: E402
from headway.sim.fleet.scenario import DAY, FleetScenario, make_scenario, slice_name  # noqa: E402
from headway.sim.fleet.simulation import draw_day  # noqa: E402

JOBS, DAYS, PLANTED = 100_000, 90, 12
FIRST = 14  # the first day on which detectors are asked
NEAR = 3 * DAY
SOON = 14 * DAY  # an alarm of the threshold has no day of its own; it may come so late
MUST_FOUND, MUST_ALARMS = 0.95, 1.0
DROPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
TRAINED = BUCKETS.index(EFFECTIVE)
NOISES = ("WASTE_SIGMA", "STAGE_SIGMA", "DAY_SIGMA")


class Alarm(NamedTuple):
    """Raised at the moment `told` for a slice: it changed at `at`, and perhaps in which bucket."""

    slice: int
    told: float
    at: float
    bucket: str = ""
    fields: tuple[str, ...] = ()


class World:
    """A fleet as it comes to be known."""

    def __init__(self, seed: int) -> None:
        self.plan = make_scenario(seed, JOBS, DAYS, regressions=PLANTED)
        self.days = [draw_day(self.plan, number) for number in range(DAYS)]
        self.moments = [self.plan.begin + number * DAY for number in range(FIRST, DAYS + 1)]

    def series(self, at: float) -> list[Series]:
        """The jobs of each slice, as far as they are known at that moment."""
        known = [one for one in self.days if one[0].start[0] < at]
        seconds = np.concatenate([full.known(at).by_job(j.start.size) for j, full in known])
        jobs = [j for j, _ in known]
        start = np.concatenate([j.start for j in jobs])
        slices = np.concatenate([j.slice for j in jobs])
        names = jobs[0].fields
        whole = Series(
            (),
            BUCKETS,
            start,
            np.concatenate([j.accelerators for j in jobs]).astype(float),
            seconds,
            np.concatenate([j.start + j.wall > at for j in jobs]),
            {name: np.concatenate([j.fields[name] for j in jobs]) for name in names},
        )
        begun = start < at
        found = []
        for number in range(self.plan.shares.size):
            one = whole.where((slices == number) & begun)
            found.append(Series(slice_name(number), *list(vars(one).values())[1:]))
        return found

    def daily(self) -> np.ndarray[Any, Any]:
        """Accelerator-seconds by slice, day and leaf, as a plot over days would show them."""
        table = np.zeros((self.plan.shares.size, DAYS, len(BUCKETS)))
        for jobs, full in self.days:
            so_far = full.known(self.plan.end)
            cut = split_windows(so_far, DAY)
            job = so_far.attempts.job[cut.attempt]
            number = ((cut.begin - self.plan.begin) / DAY).round().astype(int)
            weighted = cut.seconds * jobs.accelerators[job][:, None]
            np.add.at(table, (jobs.slice[job], number), weighted)
        return table


def looked_at(
    world: World, running: Following
) -> tuple[list[Alarm], float, list[np.ndarray[Any, Any]]]:
    """What Headway tells day by day, the seconds of its slowest look, and the values it saw."""
    numbers = {slice_name(number): number for number in range(world.plan.shares.size)}
    alarms, slowest, values = [], 0.0, []
    for moment in world.moments:
        series = world.series(moment)
        began = time.perf_counter()
        found = find(series, moment, ScanOptions())
        slowest = max(slowest, time.perf_counter() - began)
        for one in found:
            if one.regression:
                fields = tuple(change.field for change in one.fields)
                alarms.append(Alarm(numbers[one.slice], moment, one.at, one.bucket, fields))
        values.append(by_day(world, moment, series))
        running.look(moment, series)
    return alarms, slowest, values


def by_day(world: World, moment: float, series: list[Series]) -> np.ndarray[Any, Any]:
    """Slices x days x buckets: the values that Headway tests, as weighted means of days."""
    days = round((moment - world.plan.begin) / DAY)
    table = np.zeros((len(series), days, len(BUCKETS)), dtype=np.float32)
    for number, one in enumerate(series):
        weights, points = cap_weights(one.hours), one.points
        leaves = np.flatnonzero(weights @ points / weights.sum() >= MIN_SHARE)
        values = standardize_within_cohort(
            points[:, leaves], weights, duration_bins(one.wall, weights)
        )
        when = ((one.start - world.plan.begin) // DAY).astype(int)
        held = np.maximum(np.bincount(when, weights, days), 1e-9)
        for column, leaf in enumerate(leaves):
            sums = np.bincount(when, weights * values[:, column], days)
            table[number, :, leaf] = sums / held
    return table


def threshold(world: World, daily: np.ndarray[Any, Any], drop: float) -> list[Alarm]:
    """The last 7 days against the 28 before them; an alarm lasts as long as it is below."""
    alarms = []
    low: set[int] = set()
    for moment in world.moments:
        today = round((moment - world.plan.begin) / DAY)
        late = _ett(daily[:, max(today - 7, 0) : today])
        early = _ett(daily[:, max(today - 35, 0) : max(today - 7, 1)])
        now = {int(number) for number in np.flatnonzero(early - late >= drop)}
        alarms += [Alarm(number, moment, moment) for number in sorted(now - low)]
        low = now
    return alarms


def _ett(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    total = part.sum(axis=(1, 2))
    return np.asarray(100 * part[:, :, TRAINED].sum(axis=1) / np.maximum(total, 1e-9))


class Score(NamedTuple):
    """How a detector did."""

    found: int
    planted: int
    delays: list[float]  # days from a regression to its first true alarm
    false: int
    weeks: float
    errors: list[float]  # days from the day that is named to the true one
    bucket: int  # of those found, how often it was named right
    field: int  # and how often the field was among those named

    @property
    def share(self) -> float:
        return self.found / max(self.planted, 1)

    @property
    def a_week(self) -> float:
        return self.false / self.weeks


def score(world_plan: FleetScenario, alarms: Iterable[Alarm], late: float | None = None) -> Score:
    """Each alarm once; `late`: how long after a regression an alarm without a day is true."""
    truth = {one.slice: one for one in world_plan.planted}
    first: dict[int, Alarm] = {}
    false: list[Alarm] = []
    for alarm in sorted(alarms, key=lambda one: one.told):
        one = truth.get(alarm.slice)
        if one is not None and alarm.told >= one.at:
            true = alarm.told - one.at <= late if late else abs(alarm.at - one.at) <= NEAR
            if true:
                first.setdefault(alarm.slice, alarm)
                continue
        if not any(o.slice == alarm.slice and abs(o.at - alarm.at) <= NEAR for o in false):
            false.append(alarm)
    return Score(
        found=len(first),
        planted=len(truth),
        delays=[(a.told - truth[number].at) / DAY for number, a in first.items()],
        false=len(false),
        weeks=(DAYS - FIRST) / 7,
        errors=[abs(a.at - truth[number].at) / DAY for number, a in first.items()],
        bucket=sum(a.bucket == truth[number].bucket for number, a in first.items()),
        field=sum(truth[number].field in a.fields for number, a in first.items()),
    )


def together(scores: list[Score]) -> Score:
    """Over several fleets."""
    return Score(
        sum(one.found for one in scores),
        sum(one.planted for one in scores),
        [value for one in scores for value in one.delays],
        sum(one.false for one in scores),
        sum(one.weeks for one in scores),
        [value for one in scores for value in one.errors],
        sum(one.bucket for one in scores),
        sum(one.field for one in scores),
    )


def measure(task: tuple[int, str, float]) -> dict[str, Any]:
    """One fleet: ours and the threshold; what ruptures needs is left in a file."""
    seed, folder, noise = task
    for name in NOISES:
        setattr(defaults, name, getattr(defaults, name) * noise)
    world = World(seed)
    daily = world.daily()
    running = Following(seed, world.days)
    alarms, slowest, looks = looked_at(world, running)
    shares = 100 * daily / np.maximum(daily.sum(axis=2, keepdims=True), 1e-9)
    values = {f"values_{i}": table for i, table in enumerate(looks)}
    np.savez(Path(folder) / f"{seed}.npz", shares=shares, trained=TRAINED, first=FIRST, **values)
    print(f"fleet {seed} done, slowest look {slowest:.1f} s", file=sys.stderr)
    return {
        "seed": seed,
        "slowest_s": slowest,
        "ours": score(world.plan, alarms),
        "running": running.noticed(),
        "threshold": {
            drop: score(world.plan, threshold(world, daily, drop), SOON) for drop in DROPS
        },
    }


def ruptures(seeds: list[int], folder: str) -> dict[str, dict[str, list[Score]]] | str:
    """PELT by its own package in its own environment, or why that is not to be had."""
    try:
        binary = python("regressions")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"not installed: {error}"
    found: dict[str, dict[str, list[Score]]] = {}
    for seed in seeds:
        script = str(Path(__file__).parent / "in_venv_peers" / "pelt.py")
        done = subprocess.run(
            [binary, script, str(Path(folder) / f"{seed}.npz")], capture_output=True, text=True
        )
        if done.returncode:
            return f"failed: {done.stderr.strip().splitlines()[-1]}"
        made = make_scenario(seed, JOBS, DAYS, regressions=PLANTED)
        for way, settings in json.loads(done.stdout).items():
            for setting, alarms in settings.items():
                told = [
                    Alarm(number, made.begin + now * DAY, made.begin + at * DAY)
                    for number, now, at in alarms
                ]
                found.setdefault(way, {}).setdefault(setting, []).append(score(made, told))
    return found


def best(settings: dict[Any, Score]) -> tuple[Any, Score]:
    """The setting that finds most within the alarms allowed; else the one that alarms least."""
    allowed = {key: one for key, one in settings.items() if one.a_week <= MUST_ALARMS}
    if allowed:
        return max(allowed.items(), key=lambda pair: (pair[1].share, -pair[1].a_week))
    return min(settings.items(), key=lambda pair: pair[1].a_week)


def row(name: str, setting: str, one: Score) -> dict[str, Any]:
    delays = sorted(one.delays)
    return {
        "detector": name,
        "setting": setting,
        "planted": one.planted,
        "found": one.found,
        "found_share": round(one.share, 4),
        "delay_median_days": round(float(np.median(delays)), 2) if delays else None,
        "delay_p90_days": round(float(np.quantile(delays, 0.9)), 2) if delays else None,
        "false_alarms_a_week": round(one.a_week, 3),
        "day_off_median": round(float(np.median(one.errors)), 2) if delays else None,
        "bucket_right": one.bucket,
        "field_named": one.field,
    }


def given(flag: str, otherwise: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else otherwise


def main() -> int:
    fleets, noise = int(given("--fleets", "6")), float(given("--noise", "1"))
    seeds = [100 + number for number in range(fleets)]
    with tempfile.TemporaryDirectory() as folder:
        # A process for each fleet, as what is assumed is changed in it.
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
            done = pool.map(measure, [(seed, folder, noise) for seed in seeds], chunksize=1)
        peers = ruptures(seeds, folder)
    mine = together([one["ours"] for one in done])
    table = [row("headway fleet regressions", "as it comes", mine)]
    drops = {drop: together([one["threshold"][drop] for one in done]) for drop in DROPS}
    drop, one = best(drops)
    table.append(row("threshold on weekly ETT", f"{drop:g} points", one))
    if isinstance(peers, str):
        table.append({"detector": "ruptures PELT", "setting": peers})
    else:
        for way, settings in peers.items():
            penalty, one = best({key: together(scores) for key, scores in settings.items()})
            table.append(row(f"ruptures PELT, {way}", f"penalty {penalty}", one))
    running = rows([one["running"] for one in done])
    for told in (*table, *running):
        print(json.dumps(told))
    met = mine.share >= MUST_FOUND and mine.a_week <= MUST_ALARMS
    slowest = max(one["slowest_s"] for one in done)
    print(f"50 slices, {JOBS:,} jobs, {DAYS} days: the slowest look took {slowest:.1f} s")
    print(
        f"must find {MUST_FOUND:.0%} at {MUST_ALARMS:g} false alarm a week: "
        f"{'met' if met else 'MISSED'}"
    )
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    keep(
        "regressions" if noise == 1 else f"regressions_noise_{noise:g}",
        {
            "machine": machine,
            "fleets": fleets,
            "noise": noise,
            "slowest_s": round(slowest, 1),
            "rows": table,
        },
    )
    if noise == 1:
        keep("regressions_running", {"machine": machine, "fleets": fleets, "rows": running})
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
