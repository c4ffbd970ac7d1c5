"""Running jobs of simulated fleets that get worse on the way: which are noticed, and how soon.

Jobs of a simulated fleet that run for more than a day and a half waste more or less of each hour,
and their steps are faster or slower: by factors that are assumed, as no trace has them. In some of
them, from an hour on, a part of the time is lost or every step takes longer. Each day all jobs that
ran in it are shown to `headway.fleet.regressions.running.watch_running`, up to the hour that is
known.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.fleet.regressions.cohorts import Series
from headway.fleet.regressions.e_detector import BASELINE_SIZE
from headway.fleet.regressions.running import Alarm, expected_share, in_loop, trains, watch_running
from headway.ledger.buckets import BUCKETS
from headway.sim.fleet.scenario import DAY, slice_name

HOUR = 3600.0
LEFT = 24  # hours at least that a planted job goes on
ONE_IN = 10  # of the jobs that are long enough
HOUR_SIGMA = 0.5  # of an hour's waste beside its job's
PACE_SIGMA = 0.02  # of an hour's steps
FALLS = (0.02, 0.05, 0.10, 0.20)  # of the time, that is no longer trained
SLOWER = (1.1, 1.25, 1.5, 2.0)  # each step, as one slow rank makes it
CASES = (
    *(f"trains {100 * fall:g} points less" for fall in FALLS),
    *(f"steps take {factor:g} times as long" for factor in SLOWER),
)
LOOP = np.array([in_loop(leaf) for leaf in BUCKETS])
TRAINED = np.array([trains(leaf) for leaf in BUCKETS])


class Job(NamedTuple):
    """A long job: its hours, and what was planted from which of them on."""

    slice: tuple[str, ...]
    start: float
    share: float  # of its loop, before anything was planted
    shares: np.ndarray[Any, Any]
    paces: np.ndarray[Any, Any]
    case: int | None
    hour: int


class Noticed(NamedTuple):
    """What came of one fleet."""

    planted: list[int]  # by case
    delays: list[list[float]]  # hours, by case, of those that were noticed
    false: int  # named for falling, and they did not
    low: int  # named for being below their slice, and they are from their first hour on
    jobs: int
    weeks: float


def long_jobs(seed: int, days: list[Any]) -> dict[str, Job]:
    """The jobs that run long enough to be planted in, with their hours."""
    found = {}
    for jobs, full in days:
        seconds = full.by_job(jobs.start.size)
        loop = seconds[:, LOOP].sum(axis=1)
        count = (loop / HOUR).astype(int) - 1  # the hour of the start tells nothing
        for row in np.flatnonzero(count >= BASELINE_SIZE + LEFT):
            number = int(jobs.number[row])
            share = float(seconds[row, TRAINED].sum() / loop[row])
            random = np.random.default_rng([seed, number, 0x11FE])
            found[f"{number:07d}"] = _job(
                slice_name(int(jobs.slice[row])), float(jobs.start[row]), share, count[row], random
            )
    return found


def _job(
    name: tuple[str, ...], start: float, share: float, hours: int, random: np.random.Generator
) -> Job:
    noise = random.lognormal(-(HOUR_SIGMA**2) / 2, HOUR_SIGMA, hours)
    shares = 1 - np.minimum((1 - share) * noise, 1.0)
    steps = random.lognormal(0, PACE_SIGMA, hours)
    case = int(random.integers(len(CASES))) if random.random() * ONE_IN < 1 else None
    hour = int(random.integers(BASELINE_SIZE, hours - LEFT + 1))
    if case is not None and case < len(FALLS):
        shares[hour:] = np.maximum(shares[hour:] - FALLS[case], 0.0)
    elif case is not None:
        steps[hour:] *= SLOWER[case - len(FALLS)]
    return Job(name, start, share, shares, steps / np.maximum(shares, 0.01), case, hour)


class Following:
    """The long jobs of a fleet, day by day."""

    def __init__(self, seed: int, days: list[Any]) -> None:
        self.jobs = long_jobs(seed, days)
        self.alarms: dict[str, Alarm] = {}
        self.low: set[str] = set()
        self.known: dict[str, int] = {}  # hours of each, at the last look
        self.days = 0

    def look(self, moment: float, series: list[Series]) -> None:
        """What is told of the jobs that ran in the day before that moment."""
        self.days += 1
        ran = {
            name: min(int((moment - job.start) / HOUR), job.shares.size)
            for name, job in self.jobs.items()
            if moment - DAY - job.shares.size * HOUR < job.start < moment
        }
        self.known |= ran
        expectations = {one.slice: expected_share(one) for one in series}
        slices = {name: self.jobs[name].slice for name in ran}
        shares = {name: self.jobs[name].shares[:until].tolist() for name, until in ran.items()}
        paces = {name: self.jobs[name].paces[:until].tolist() for name, until in ran.items()}
        for one in watch_running(shares, paces, slices, expectations):
            job, least = self.jobs[one.run_id], expectations[one.slice]
            if one.beside == "slice" and least is not None and job.share < least:
                self.low.add(one.run_id)
            elif one.run_id not in self.low:
                self.alarms.setdefault(one.run_id, one)

    def noticed(self) -> Noticed:
        """The sums."""
        planted, false = [0] * len(CASES), 0
        delays: list[list[float]] = [[] for _ in CASES]
        for name, until in self.known.items():
            job, alarm = self.jobs[name], self.alarms.get(name)
            true = job.case is not None and alarm is not None and alarm.hour > job.hour
            if alarm is not None and not true:
                false += 1
            # It was there to be seen for as long as was planted.
            if job.case is not None and name not in self.low and until >= job.hour + LEFT:
                planted[job.case] += 1
                delays[job.case] += [float(alarm.hour - job.hour)] if alarm and true else []
        return Noticed(planted, delays, false, len(self.low), len(self.known), self.days / 7)


def rows(fleets: list[Noticed]) -> list[dict[str, Any]]:
    """A row for each case, over several fleets."""
    weeks = sum(one.weeks for one in fleets)
    told = []
    for case, name in enumerate(CASES):
        delays = [value for one in fleets for value in one.delays[case]]
        planted = sum(one.planted[case] for one in fleets)
        told.append(
            {
                "case": name,
                "planted": planted,
                "noticed": len(delays),
                "noticed_share": round(len(delays) / max(planted, 1), 4),
                "delay_median_hours": float(np.median(delays)) if delays else None,
                "delay_p90_hours": round(float(np.quantile(delays, 0.9)), 1) if delays else None,
            }
        )
    jobs, low = (sum(getattr(one, name) for one in fleets) for name in ("jobs", "low"))
    false = sum(one.false for one in fleets)
    told.append(
        {
            "case": "nothing",
            "jobs": jobs,
            "false_alarms": false,
            "false_alarms_a_week": round(false / weeks, 3),
            "below_their_slice": low,
        }
    )
    return told
