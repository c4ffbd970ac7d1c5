"""The attempts of jobs: hosts break and spot machines are taken away, and jobs begin again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.fleet.simulate import assumed
from headway.fleet.simulate.jobs import Floats, Ints, Jobs
from headway.fleet.simulate.plan import DAY, FleetScenario
from headway.fleet.simulate.tables import distributions

MAX_INTERRUPTIONS = 400  # interruptions of one job


@dataclass(frozen=True)
class Attempts:
    """A row per attempt, in order of job and time."""

    job: Ints  # row of the job
    number: Ints
    start: Floats
    end: Floats
    interrupted: NDArray[np.bool_]  # it did not come to its own end
    category: NDArray[np.str_]  # what ended it; "" if nothing did
    host: Ints  # which is to blame; -1 if none is


def draw_attempts(plan: FleetScenario, jobs: Jobs, random: np.random.Generator) -> Attempts:
    """The attempts of these jobs."""
    rate, spot_rate = _rates(plan, jobs)
    count = np.minimum(random.poisson((rate + spot_rate) * jobs.wall), MAX_INTERRUPTIONS)
    cut = np.repeat(np.arange(jobs.start.size), count)
    moments = _moments(cut, jobs, random)
    attempts = count + 1
    job = np.repeat(np.arange(jobs.start.size), attempts)
    last = np.cumsum(attempts) - 1
    first = last - count
    interrupted = np.ones(job.size, dtype=bool)
    interrupted[last] = False
    start, end = np.empty(job.size), np.empty(job.size)
    end[interrupted], end[last] = moments, jobs.start + jobs.wall
    start[first] = jobs.start
    later = np.ones(job.size, dtype=bool)
    later[first] = False
    start[later] = moments
    number = np.arange(job.size) - np.repeat(first, attempts)
    spot = random.random(cut.size) * (rate + spot_rate)[cut] < spot_rate[cut]
    category, host = _causes(plan, jobs, cut, spot, random)
    categories = np.full(job.size, "", dtype="<U16")
    hosts = np.full(job.size, -1, dtype=np.int64)
    categories[interrupted], hosts[interrupted] = category, host
    _own_failures(jobs, categories, last, random)
    return Attempts(job, number, start, end, interrupted, categories, hosts)


def _moments(cut: Ints, jobs: Jobs, random: np.random.Generator) -> Floats:
    """A moment for each interruption, in order within each job."""
    share = random.random(cut.size)
    share = share[np.lexsort((share, cut))]
    return jobs.start[cut] + share * jobs.wall[cut]


def _rates(plan: FleetScenario, jobs: Jobs) -> tuple[Floats, Floats]:
    """Faults and takings-away of each job, per second."""
    told = distributions()
    job, nth = _each_host(jobs)
    bad = np.isin(jobs.host(job, nth), list(plan.lemons))
    weight = np.bincount(job, np.where(bad, assumed.LEMON, 1.0), jobs.start.size)
    spot = np.isin(jobs.slice, list(plan.spot))
    faults = np.asarray(told.faults_per_node_day / DAY * weight, dtype=np.float64)
    return faults, np.where(spot, told.spot_per_node_hour / 3600 * jobs.hosts, 0.0)


def _each_host(jobs: Jobs) -> tuple[Ints, Ints]:
    """A row per job and host: the job, and which of its hosts."""
    job = np.repeat(np.arange(jobs.start.size), jobs.hosts)
    before = np.cumsum(jobs.hosts) - jobs.hosts
    return job, np.arange(job.size) - before[job]


def _causes(
    plan: FleetScenario, jobs: Jobs, cut: Ints, spot: NDArray[np.bool_], random: np.random.Generator
) -> tuple[NDArray[np.str_], Ints]:
    """What each interruption was, and on which host; bad hosts take more of them."""
    kinds = distributions().fault_kinds
    shares = np.array(list(kinds.values()), dtype=np.float64)
    category = random.choice(list(kinds), cut.size, p=shares / shares.sum()).astype("<U16")
    category[spot] = "preemption"
    # The k-th host has the share of the job's faults that its weight is of all its hosts'.
    host = jobs.host(cut, (random.random(cut.size) * jobs.hosts[cut]).astype(np.int64))
    for row in np.flatnonzero((jobs.hosts[cut] > 1) & ~spot):
        all_hosts = jobs.host(
            np.full(jobs.hosts[cut[row]], cut[row]), np.arange(jobs.hosts[cut[row]])
        )
        weight = np.where(np.isin(all_hosts, list(plan.lemons)), assumed.LEMON, 1.0)
        host[row] = random.choice(all_hosts, p=weight / weight.sum())
    host[spot] = -1
    return category, host


def _own_failures(
    jobs: Jobs, categories: NDArray[np.str_], last: Ints, random: np.random.Generator
) -> None:
    names = list(assumed.USER_FAILURES)
    failed = last[jobs.outcome == 2]
    shares = np.array(list(assumed.USER_FAILURES.values()))
    categories[failed] = random.choice(names, failed.size, p=shares / shares.sum())
