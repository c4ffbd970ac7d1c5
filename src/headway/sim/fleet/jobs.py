"""Draw the jobs of a day and their attempts: hosts fail and spot nodes are reclaimed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.sim.fleet import defaults
from headway.sim.fleet.defaults import distributions
from headway.sim.fleet.scenario import DAY, EPOCH, FleetScenario

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Jobs:
    """A row per job, sorted by start."""

    number: Ints  # unique in the fleet
    slice: Ints
    start: Floats
    wall: Floats  # may extend beyond the end of the simulation
    accelerators: Ints
    hosts: Ints  # number of hosts
    first_host: Ints
    pool: Ints  # first host of the pool
    pool_size: Ints
    outcome: Ints  # index into OUTCOMES
    fields: dict[str, NDArray[np.str_]]

    def host(self, job: Ints, nth: Ints) -> Ints:
        """The nth host of a job."""
        return self.pool[job] + (self.first_host[job] + nth) % self.pool_size[job]


OUTCOMES = ("completed", "stopped", "failed")


def draw_jobs(scenario: FleetScenario, day: int, random: np.random.Generator) -> Jobs:
    """Draw the jobs of a day; their number does not depend on the seed."""
    trace = distributions()
    first, last = _numbers(scenario, day)
    count = last - first
    start = np.sort(_hours(scenario, day, count, random) + random.uniform(0, 3600, count))
    sizes = random.choice(trace.sizes.size, count, p=trace.size_shares)
    wall = _durations(sizes, random)
    slices = random.choice(scenario.shares.size, count, p=scenario.shares)
    fields = {name: _values(scenario, name, slices, start) for name in scenario.rollouts}
    pools = np.array([scenario.hosts[kind] for kind in fields["host_type"]], dtype=np.int64)
    pools = pools.reshape(-1, 2)
    accelerators = trace.sizes[sizes] * scenario.scale
    pool_size = pools[:, 1] - pools[:, 0]
    shares = np.array([trace.outcomes[name] for name in OUTCOMES])
    return Jobs(
        number=np.arange(first, last),
        slice=slices,
        start=start,
        wall=wall,
        accelerators=accelerators,
        hosts=np.minimum(-(-accelerators // defaults.GPUS), pool_size),
        first_host=(random.random(count) * pool_size).astype(np.int64),
        pool=pools[:, 0],
        pool_size=pool_size,
        outcome=random.choice(len(OUTCOMES), count, p=shares / shares.sum()),
        fields=fields,
    )


def _numbers(scenario: FleetScenario, day: int) -> tuple[int, int]:
    """The first job of a day and of the next day, according to the weekdays of the trace."""
    weekdays = distributions().arrivals.reshape(7, 24).sum(axis=1)
    before = np.concatenate([[0.0], np.cumsum(weekdays[np.arange(scenario.days) % 7])])
    edges = np.round(before / before[-1] * scenario.jobs).astype(int)
    return int(edges[day]), int(edges[day + 1])


def _hours(scenario: FleetScenario, day: int, count: int, random: np.random.Generator) -> Floats:
    hours = distributions().arrivals.reshape(7, 24)[day % 7]
    drawn = random.choice(24, count, p=hours / hours.sum())
    return np.asarray(EPOCH + day * DAY + 3600.0 * drawn, dtype=np.float64)


def _durations(sizes: Ints, random: np.random.Generator) -> Floats:
    """Interpolate the quantiles of each size on a log scale."""
    trace = distributions()
    level = random.random(sizes.size)
    wall = np.empty(sizes.size)
    for size in range(trace.sizes.size):
        selected = sizes == size
        wall[selected] = np.exp(
            np.interp(level[selected], trace.levels, np.log(trace.durations[size]))
        )
    return wall


def _values(scenario: FleetScenario, name: str, slices: Ints, start: Floats) -> NDArray[np.str_]:
    """The value of a field of each job at its start."""
    values = np.empty(slices.size, dtype="<U24")
    for number in np.unique(slices):
        history = scenario.rollouts[name][number]
        selected = slices == number
        moments = np.array([rollout.at for rollout in history])
        index = np.searchsorted(moments, start[selected], side="right") - 1
        values[selected] = np.array([rollout.value for rollout in history])[np.maximum(index, 0)]
    return values


MAX_INTERRUPTIONS = 400  # per job


@dataclass(frozen=True)
class Attempts:
    """A row per attempt, sorted by job and time."""

    job: Ints  # row of the job
    number: Ints
    start: Floats
    end: Floats
    interrupted: NDArray[np.bool_]  # by a fault or a reclaim
    category: NDArray[np.str_]  # of its failure; "" if it did not fail
    host: Ints  # that caused the failure; -1 if none did


def draw_attempts(scenario: FleetScenario, jobs: Jobs, random: np.random.Generator) -> Attempts:
    rate, spot_rate = _rates(scenario, jobs)
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
    category, host = _causes(scenario, jobs, cut, spot, random)
    categories = np.full(job.size, "", dtype="<U16")
    hosts = np.full(job.size, -1, dtype=np.int64)
    categories[interrupted], hosts[interrupted] = category, host
    _own_failures(jobs, categories, last, random)
    return Attempts(job, number, start, end, interrupted, categories, hosts)


def _moments(cut: Ints, jobs: Jobs, random: np.random.Generator) -> Floats:
    """A time for each interruption, sorted within each job."""
    share = random.random(cut.size)
    share = share[np.lexsort((share, cut))]
    return jobs.start[cut] + share * jobs.wall[cut]


def _rates(scenario: FleetScenario, jobs: Jobs) -> tuple[Floats, Floats]:
    """Fault rate and spot reclaim rate of each job, per second."""
    trace = distributions()
    job, nth = _each_host(jobs)
    is_lemon = np.isin(jobs.host(job, nth), list(scenario.lemons))
    weight = np.bincount(job, np.where(is_lemon, defaults.LEMON, 1.0), jobs.start.size)
    spot = np.isin(jobs.slice, list(scenario.spot))
    faults = np.asarray(trace.faults_per_node_day / DAY * weight, dtype=np.float64)
    return faults, np.where(spot, trace.spot_per_node_hour / 3600 * jobs.hosts, 0.0)


def _each_host(jobs: Jobs) -> tuple[Ints, Ints]:
    """A row per job and host: the job and the index of its host."""
    job = np.repeat(np.arange(jobs.start.size), jobs.hosts)
    before = np.cumsum(jobs.hosts) - jobs.hosts
    return job, np.arange(job.size) - before[job]


def _causes(
    scenario: FleetScenario,
    jobs: Jobs,
    cut: Ints,
    spot: NDArray[np.bool_],
    random: np.random.Generator,
) -> tuple[NDArray[np.str_], Ints]:
    """The category and the host of each interruption; lemon hosts cause more of them."""
    kinds = distributions().fault_kinds
    shares = np.array(list(kinds.values()), dtype=np.float64)
    category = random.choice(list(kinds), cut.size, p=shares / shares.sum()).astype("<U16")
    category[spot] = "preemption"
    # A host is chosen with its share of the weights of all hosts of the job.
    host = jobs.host(cut, (random.random(cut.size) * jobs.hosts[cut]).astype(np.int64))
    for row in np.flatnonzero((jobs.hosts[cut] > 1) & ~spot):
        all_hosts = jobs.host(
            np.full(jobs.hosts[cut[row]], cut[row]), np.arange(jobs.hosts[cut[row]])
        )
        weight = np.where(np.isin(all_hosts, list(scenario.lemons)), defaults.LEMON, 1.0)
        host[row] = random.choice(all_hosts, p=weight / weight.sum())
    host[spot] = -1
    return category, host


def _own_failures(
    jobs: Jobs, categories: NDArray[np.str_], last: Ints, random: np.random.Generator
) -> None:
    names = list(defaults.USER_FAILURES)
    failed = last[jobs.outcome == 2]
    shares = np.array(list(defaults.USER_FAILURES.values()))
    categories[failed] = random.choice(names, failed.size, p=shares / shares.sum())
