"""Account for the seconds of each attempt: by bucket, up to a moment, and in windows of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from headway.ledger.buckets import BUCKETS, DETECTION, DOWNTIME, EFFECTIVE, LOST, SHUTDOWN
from headway.sim.fleet import defaults
from headway.sim.fleet.defaults import distributions
from headway.sim.fleet.jobs import Attempts, Floats, Ints, Jobs
from headway.sim.fleet.scenario import DAY, FleetScenario, PlantedRegression
from headway.taxonomy import START_STAGES

COLUMN = {bucket: number for number, bucket in enumerate(BUCKETS)}
LOOP = np.array(
    [bucket.startswith("waste.") or bucket in (EFFECTIVE, LOST) for bucket in BUCKETS], dtype=bool
)
_NOISE = 0.3  # sigma of the per-job effect of a planted regression


@dataclass(frozen=True)
class Account:
    """Seconds by attempt (rows) and bucket (columns, as in BUCKETS); rows sum to the wall time."""

    attempts: Attempts
    seconds: Floats

    @property
    def setup(self) -> Floats:
        """Seconds of each attempt before its loop."""
        return np.asarray(self.seconds[:, ~LOOP].sum(axis=1) - self.seconds[:, COLUMN[SHUTDOWN]])

    def known(self, at: float) -> Account:
        """The account as a ledger at time `at` shows it: attempts so far, cut at that time."""
        has_started = self.attempts.start < at
        attempts = Attempts(
            **{name: values[has_started] for name, values in vars(self.attempts).items()}
        )
        seconds = self.seconds[has_started].copy()
        is_cut = np.flatnonzero(attempts.end > at)
        if is_cut.size:
            seconds[is_cut] = _so_far(seconds[is_cut], at - attempts.start[is_cut])
            attempts.end[is_cut] = at
            attempts.interrupted[is_cut] = False
            attempts.category[is_cut] = ""
            attempts.host[is_cut] = -1
        return Account(attempts, seconds)

    def by_job(self, jobs: int) -> Floats:
        """Seconds by job and bucket."""
        result = np.zeros((jobs, self.seconds.shape[1]))
        for column in np.flatnonzero(self.seconds.any(axis=0)):
            result[:, column] = np.bincount(self.attempts.job, self.seconds[:, column], jobs)
        return result


def _so_far(seconds: Floats, elapsed: Floats) -> Floats:
    """Set-up comes first, then the loop evenly; a running attempt has lost nothing."""
    setup = np.where(LOOP, 0.0, seconds)
    setup[:, COLUMN[SHUTDOWN]] = 0.0
    loop = np.where(LOOP, seconds, 0.0)
    loop[:, COLUMN[EFFECTIVE]] += loop[:, COLUMN[LOST]]
    loop[:, COLUMN[LOST]] = 0.0
    before = np.minimum(setup.sum(axis=1), elapsed)
    return _scaled(setup, before) + _scaled(loop, elapsed - before)


def _scaled(part: Floats, total: Floats) -> Floats:
    """Scale rows to the given sums; time of rows without proportions is training."""
    sums = part.sum(axis=1)
    result = part * np.divide(total, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
    result[sums <= 0, COLUMN[EFFECTIVE]] = total[sums <= 0]
    return np.asarray(result)


def make_account(
    scenario: FleetScenario, jobs: Jobs, attempts: Attempts, random: np.random.Generator
) -> Account:
    """Assign every second of every attempt to a bucket."""
    length = attempts.end - attempts.start
    seconds = np.zeros((length.size, len(BUCKETS)))
    _set_up(scenario, jobs, attempts, seconds, random)
    _plant_in_starts(scenario, jobs, attempts, seconds)
    ending = ~attempts.interrupted
    seconds[ending, COLUMN[SHUTDOWN]] = defaults.SHUTDOWN_S * random.lognormal(
        0, defaults.STAGE_SIGMA, int(ending.sum())
    )
    used = seconds.sum(axis=1)
    scale = np.minimum(1.0, length / np.maximum(used, 1e-9))
    seconds *= scale[:, None]  # it ended during set-up
    loop = np.maximum(length - seconds.sum(axis=1), 0.0)
    _loop(scenario, jobs, attempts, loop, seconds, random)
    return Account(attempts, seconds)


def _set_up(
    scenario: FleetScenario,
    jobs: Jobs,
    attempts: Attempts,
    seconds: Floats,
    random: np.random.Generator,
) -> None:
    is_restart = attempts.number > 0
    for number, stage in enumerate(START_STAGES):
        factor = scenario.stage_factors[jobs.slice[attempts.job], number]
        durations = defaults.STAGES[stage] * factor
        durations = durations * random.lognormal(0, defaults.STAGE_SIGMA, durations.size)
        if stage == "process_group_init":
            durations = durations * np.log2(2 * jobs.accelerators[attempts.job])
        if stage == "checkpoint_load":
            durations = np.where(is_restart, durations, 0.0)
        seconds[~is_restart, COLUMN[f"start.{stage}"]] = durations[~is_restart]
        seconds[is_restart, COLUMN[f"recover.{stage}"]] = durations[is_restart]
    count = int(is_restart.sum())
    for bucket, median in ((DETECTION, defaults.DETECTION_S), (DOWNTIME, defaults.DOWNTIME_S)):
        seconds[is_restart, COLUMN[bucket]] = median * random.lognormal(
            0, defaults.STAGE_SIGMA, count
        )


def _loop(
    scenario: FleetScenario,
    jobs: Jobs,
    attempts: Attempts,
    loop: Floats,
    seconds: Floats,
    random: np.random.Generator,
) -> None:
    slices = jobs.slice[attempts.job]
    day = ((jobs.start[attempts.job] - scenario.begin) // DAY).astype(np.int64)
    remaining = loop.copy()
    for number, (kind, share) in enumerate(defaults.WASTE.items()):
        by_job = random.lognormal(0, defaults.WASTE_SIGMA, jobs.start.size)[attempts.job]
        daily = _daily(scenario, number, slices, day)
        wasted = loop * np.minimum(
            share * scenario.waste_factors[slices, number] * by_job * daily, 0.15
        )
        seconds[:, COLUMN[f"waste.{kind}"]] = wasted
        remaining -= wasted
    _plant_in_loops(scenario, jobs, attempts, remaining, seconds)
    lost = np.where(
        attempts.interrupted & (attempts.category != "preemption"),
        np.minimum(random.random(remaining.size) * defaults.SAVE_EVERY_S, remaining),
        0.0,
    )
    seconds[:, COLUMN[LOST]] = lost
    seconds[:, COLUMN[EFFECTIVE]] += remaining - lost


def _daily(scenario: FleetScenario, kind: int, slices: Ints, day: Ints) -> Floats:
    """Factors that the jobs of a slice have in common on a day; reproducible for each kind."""
    shape = (scenario.shares.size, scenario.days)
    table = np.random.default_rng([scenario.seed, 0xDA15, kind]).lognormal(
        0, defaults.DAY_SIGMA, shape
    )
    return np.asarray(table[slices, day])


def _affected(jobs: Jobs, attempts: Attempts, regression: PlantedRegression) -> Ints:
    """Attempts of jobs in the slice that began after the regression."""
    is_affected = (jobs.slice == regression.slice) & (jobs.start >= regression.at)
    return np.flatnonzero(is_affected[attempts.job])


def _plant_in_loops(
    scenario: FleetScenario, jobs: Jobs, attempts: Attempts, remaining: Floats, seconds: Floats
) -> None:
    """Move a share of the attempt's total time from training to the bucket."""
    for regression in scenario.planted:
        rows = _affected(jobs, attempts, regression)
        if regression.bucket.startswith("start.") or not rows.size:
            continue
        # A separate generator, so that all other draws are independent of planted regressions.
        random = np.random.default_rng([scenario.seed, regression.slice, int(jobs.number[0])])
        factor = random.lognormal(-(_NOISE**2) / 2, _NOISE, rows.size)
        length = attempts.end[rows] - attempts.start[rows]
        moved = np.minimum(regression.points / 100 * length * factor, 0.9 * remaining[rows])
        seconds[rows, COLUMN[regression.bucket]] += moved
        remaining[rows] -= moved


def _plant_in_starts(
    scenario: FleetScenario, jobs: Jobs, attempts: Attempts, seconds: Floats
) -> None:
    """Lengthen each start such that it costs the planted points over all hours."""
    for regression in scenario.planted:
        if not regression.bucket.startswith("start."):
            continue
        rows = _affected(jobs, attempts, regression)
        stage = regression.bucket.partition(".")[2]
        is_first = attempts.number[rows] == 0
        added = regression.points / 100 * distributions().mean_wall
        seconds[rows[is_first], COLUMN[regression.bucket]] += added
        seconds[rows[~is_first], COLUMN[f"recover.{stage}"]] += added


@dataclass(frozen=True)
class Windows:
    """A row per attempt and overlapping window; columns are buckets."""

    attempt: Ints  # row of the attempt
    begin: Floats  # start of the window, in seconds since the epoch
    seconds: Floats


def split_windows(account: Account, grain: float = 3600.0) -> Windows:
    """Split attempts into windows: set-up first, then the loop evenly, then the shutdown."""
    attempts = account.attempts
    first = np.floor(attempts.start / grain).astype(np.int64)
    last = np.maximum(np.ceil(attempts.end / grain).astype(np.int64), first + 1)
    count = last - first
    attempt = np.repeat(np.arange(count.size), count)
    offset = np.arange(attempt.size) - np.repeat(np.cumsum(count) - count, count)
    begin = np.asarray((first[attempt] + offset) * grain, dtype=np.float64)
    stop = account.seconds[:, COLUMN[SHUTDOWN]]
    edges = (attempts.start, attempts.start + account.setup, attempts.end - stop, attempts.end)
    parts = [
        _overlap(low[attempt], high[attempt], begin, grain)
        for low, high in itertools.pairwise(edges)
    ]
    setup, loop, ending = parts
    share = np.where(LOOP, loop[:, None], setup[:, None])
    share[:, COLUMN[SHUTDOWN]] = ending
    return Windows(attempt, begin, account.seconds[attempt] * share)


def _overlap(low: Floats, high: Floats, begin: Floats, grain: float) -> Floats:
    """The share of [low, high) within the window."""
    inside = np.minimum(high, begin + grain) - np.maximum(low, begin)
    length = high - low
    share = np.divide(inside, length, out=np.zeros_like(inside), where=length > 1e-6)
    return np.asarray(np.clip(share, 0.0, 1.0))
