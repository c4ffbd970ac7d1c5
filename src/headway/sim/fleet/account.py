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

COLUMN = {leaf: number for number, leaf in enumerate(BUCKETS)}
LOOP = np.array(
    [leaf.startswith("waste.") or leaf in (EFFECTIVE, LOST) for leaf in BUCKETS], dtype=bool
)
_NOISE = 0.3  # sigma of what a planted regression takes of each job


@dataclass(frozen=True)
class Account:
    """Seconds by attempt (rows) and leaf (columns, as in LEAVES); rows sum to its wall time."""

    lives: Attempts
    seconds: Floats

    @property
    def setup(self) -> Floats:
        """Seconds of each attempt before its loop."""
        return np.asarray(self.seconds[:, ~LOOP].sum(axis=1) - self.seconds[:, COLUMN[SHUTDOWN]])

    def known(self, at: float) -> Account:
        """What a ledger tells at that moment: attempts so far, and no more than so far of them."""
        begun = self.lives.start < at
        lives = Attempts(**{name: values[begun] for name, values in vars(self.lives).items()})
        seconds = self.seconds[begun].copy()
        cut = np.flatnonzero(lives.end > at)
        if cut.size:
            seconds[cut] = _so_far(seconds[cut], at - lives.start[cut])
            lives.end[cut] = at
            lives.interrupted[cut] = False
            lives.category[cut] = ""
            lives.host[cut] = -1
        return Account(lives, seconds)

    def by_job(self, jobs: int) -> Floats:
        """Seconds by job and leaf."""
        found = np.zeros((jobs, self.seconds.shape[1]))
        for column in np.flatnonzero(self.seconds.any(axis=0)):
            found[:, column] = np.bincount(self.lives.job, self.seconds[:, column], jobs)
        return found


def _so_far(seconds: Floats, elapsed: Floats) -> Floats:
    """The set-up comes first, then the loop evenly; nothing is lost as long as it goes on."""
    setup = np.where(LOOP, 0.0, seconds)
    setup[:, COLUMN[SHUTDOWN]] = 0.0
    loop = np.where(LOOP, seconds, 0.0)
    loop[:, COLUMN[EFFECTIVE]] += loop[:, COLUMN[LOST]]
    loop[:, COLUMN[LOST]] = 0.0
    before = np.minimum(setup.sum(axis=1), elapsed)
    return _scaled(setup, before) + _scaled(loop, elapsed - before)


def _scaled(part: Floats, total: Floats) -> Floats:
    """Rows in the same proportions, with these sums; what has no proportions is training."""
    held = part.sum(axis=1)
    found = part * np.divide(total, held, out=np.zeros_like(held), where=held > 0)[:, None]
    found[held <= 0, COLUMN[EFFECTIVE]] = total[held <= 0]
    return np.asarray(found)


def make_account(
    plan: FleetScenario, jobs: Jobs, lives: Attempts, random: np.random.Generator
) -> Account:
    """Every second of every attempt in one leaf."""
    length = lives.end - lives.start
    seconds = np.zeros((length.size, len(BUCKETS)))
    _set_up(plan, jobs, lives, seconds, random)
    _plant_in_starts(plan, jobs, lives, seconds)
    ending = ~lives.interrupted
    seconds[ending, COLUMN[SHUTDOWN]] = defaults.SHUTDOWN_S * random.lognormal(
        0, defaults.STAGE_SIGMA, int(ending.sum())
    )
    spent = seconds.sum(axis=1)
    fits = np.minimum(1.0, length / np.maximum(spent, 1e-9))
    seconds *= fits[:, None]  # it ended before it was ready
    loop = np.maximum(length - seconds.sum(axis=1), 0.0)
    _loop(plan, jobs, lives, loop, seconds, random)
    return Account(lives, seconds)


def _set_up(
    plan: FleetScenario, jobs: Jobs, lives: Attempts, seconds: Floats, random: np.random.Generator
) -> None:
    again = lives.number > 0
    for number, stage in enumerate(START_STAGES):
        factor = plan.stage_factors[jobs.slice[lives.job], number]
        took = defaults.STAGES[stage] * factor
        took = took * random.lognormal(0, defaults.STAGE_SIGMA, took.size)
        if stage == "process_group_init":
            took = took * np.log2(2 * jobs.accelerators[lives.job])
        if stage == "checkpoint_load":
            took = np.where(again, took, 0.0)
        seconds[~again, COLUMN[f"start.{stage}"]] = took[~again]
        seconds[again, COLUMN[f"recover.{stage}"]] = took[again]
    count = int(again.sum())
    for leaf, median in ((DETECTION, defaults.DETECTION_S), (DOWNTIME, defaults.DOWNTIME_S)):
        seconds[again, COLUMN[leaf]] = median * random.lognormal(0, defaults.STAGE_SIGMA, count)


def _loop(
    plan: FleetScenario,
    jobs: Jobs,
    lives: Attempts,
    loop: Floats,
    seconds: Floats,
    random: np.random.Generator,
) -> None:
    slices = jobs.slice[lives.job]
    day = ((jobs.start[lives.job] - plan.begin) // DAY).astype(np.int64)
    left = loop.copy()
    for number, (kind, share) in enumerate(defaults.WASTE.items()):
        each = random.lognormal(0, defaults.WASTE_SIGMA, jobs.start.size)[lives.job]
        daily = _daily(plan, number, slices, day)
        took = loop * np.minimum(share * plan.waste_factors[slices, number] * each * daily, 0.15)
        seconds[:, COLUMN[f"waste.{kind}"]] = took
        left -= took
    _plant_in_loops(plan, jobs, lives, left, seconds)
    lost = np.where(
        lives.interrupted & (lives.category != "preemption"),
        np.minimum(random.random(left.size) * defaults.SAVE_EVERY_S, left),
        0.0,
    )
    seconds[:, COLUMN[LOST]] = lost
    seconds[:, COLUMN[EFFECTIVE]] += left - lost


def _daily(plan: FleetScenario, kind: int, slices: Ints, day: Ints) -> Floats:
    """What the days of a slice have in common, the same whoever asks."""
    shape = (plan.shares.size, plan.days)
    table = np.random.default_rng([plan.seed, 0xDA15, kind]).lognormal(0, defaults.DAY_SIGMA, shape)
    return np.asarray(table[slices, day])


def _affected(jobs: Jobs, lives: Attempts, one: PlantedRegression) -> Ints:
    """The attempts of jobs that began in the slice after the regression came."""
    hit = (jobs.slice == one.slice) & (jobs.start >= one.at)
    return np.flatnonzero(hit[lives.job])


def _plant_in_loops(
    plan: FleetScenario, jobs: Jobs, lives: Attempts, left: Floats, seconds: Floats
) -> None:
    """A share of the attempt's whole time moves from training to the bucket."""
    for one in plan.planted:
        rows = _affected(jobs, lives, one)
        if one.bucket.startswith("start.") or not rows.size:
            continue
        # Of its own, so that all else is drawn as if nothing had been planted.
        random = np.random.default_rng([plan.seed, one.slice, int(jobs.number[0])])
        factor = random.lognormal(-(_NOISE**2) / 2, _NOISE, rows.size)
        length = lives.end[rows] - lives.start[rows]
        took = np.minimum(one.points / 100 * length * factor, 0.9 * left[rows])
        seconds[rows, COLUMN[one.bucket]] += took
        left[rows] -= took


def _plant_in_starts(plan: FleetScenario, jobs: Jobs, lives: Attempts, seconds: Floats) -> None:
    """Each start takes longer, by so much that it costs the planted points over all hours."""
    for one in plan.planted:
        if not one.bucket.startswith("start."):
            continue
        rows = _affected(jobs, lives, one)
        stage = one.bucket.partition(".")[2]
        first = lives.number[rows] == 0
        took = one.points / 100 * distributions().mean_wall
        seconds[rows[first], COLUMN[one.bucket]] += took
        seconds[rows[~first], COLUMN[f"recover.{stage}"]] += took


@dataclass(frozen=True)
class Windows:
    """A row per attempt and window that it touches; columns are leaves."""

    attempt: Ints  # row of the attempt
    begin: Floats  # of the window, seconds since the epoch
    seconds: Floats


def split_windows(account: Account, grain: float = 3600.0) -> Windows:
    """Set-up comes first, then the loop evenly, then the shutdown."""
    lives = account.lives
    first = np.floor(lives.start / grain).astype(np.int64)
    last = np.maximum(np.ceil(lives.end / grain).astype(np.int64), first + 1)
    count = last - first
    attempt = np.repeat(np.arange(count.size), count)
    offset = np.arange(attempt.size) - np.repeat(np.cumsum(count) - count, count)
    begin = np.asarray((first[attempt] + offset) * grain, dtype=np.float64)
    stop = account.seconds[:, COLUMN[SHUTDOWN]]
    edges = (lives.start, lives.start + account.setup, lives.end - stop, lives.end)
    parts = [
        _overlap(low[attempt], high[attempt], begin, grain)
        for low, high in itertools.pairwise(edges)
    ]
    setup, loop, ending = parts
    share = np.where(LOOP, loop[:, None], setup[:, None])
    share[:, COLUMN[SHUTDOWN]] = ending
    return Windows(attempt, begin, account.seconds[attempt] * share)


def _overlap(low: Floats, high: Floats, begin: Floats, grain: float) -> Floats:
    """The share of [low, high) that falls into the window."""
    inside = np.minimum(high, begin + grain) - np.maximum(low, begin)
    length = high - low
    share = np.divide(inside, length, out=np.zeros_like(inside), where=length > 1e-6)
    return np.asarray(np.clip(share, 0.0, 1.0))
