"""The jobs that begin on one day, drawn all at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.fleet.simulate import assumed
from headway.fleet.simulate.plan import DAY, EPOCH, FleetScenario
from headway.fleet.simulate.tables import distributions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Jobs:
    """A row per job, in order of their start."""

    number: Ints  # over the whole fleet
    slice: Ints
    start: Floats
    wall: Floats  # had nobody looked away: some of it may lie after the end of the simulation
    accelerators: Ints
    hosts: Ints  # how many
    first_host: Ints
    pool: Ints  # the first host of its pool, and how many the pool has
    pool_size: Ints
    outcome: Ints  # index into OUTCOMES
    fields: dict[str, NDArray[np.str_]]

    def host(self, job: Ints, nth: Ints) -> Ints:
        """The nth host of a job."""
        return self.pool[job] + (self.first_host[job] + nth) % self.pool_size[job]


OUTCOMES = ("completed", "stopped", "failed")


def draw_jobs(plan: FleetScenario, day: int, random: np.random.Generator) -> Jobs:
    """The jobs of a day; their number is the same for every seed."""
    told = distributions()
    first, last = _numbers(plan, day)
    count = last - first
    start = np.sort(_hours(plan, day, count, random) + random.uniform(0, 3600, count))
    sizes = random.choice(told.sizes.size, count, p=told.size_shares)
    wall = _durations(sizes, random)
    slices = random.choice(plan.shares.size, count, p=plan.shares)
    fields = {name: _values(plan, name, slices, start) for name in plan.rollouts}
    pools = np.array([plan.hosts[kind] for kind in fields["host_type"]], dtype=np.int64)
    pools = pools.reshape(-1, 2)
    accelerators = told.sizes[sizes] * plan.scale
    pool_size = pools[:, 1] - pools[:, 0]
    shares = np.array([told.outcomes[name] for name in OUTCOMES])
    return Jobs(
        number=np.arange(first, last),
        slice=slices,
        start=start,
        wall=wall,
        accelerators=accelerators,
        hosts=np.minimum(-(-accelerators // assumed.GPUS), pool_size),
        first_host=(random.random(count) * pool_size).astype(np.int64),
        pool=pools[:, 0],
        pool_size=pool_size,
        outcome=random.choice(len(OUTCOMES), count, p=shares / shares.sum()),
        fields=fields,
    )


def _numbers(plan: FleetScenario, day: int) -> tuple[int, int]:
    """The first job of a day and the first of the next one, by the weekdays of the trace."""
    weekdays = distributions().arrivals.reshape(7, 24).sum(axis=1)
    before = np.concatenate([[0.0], np.cumsum(weekdays[np.arange(plan.days) % 7])])
    edges = np.round(before / before[-1] * plan.jobs).astype(int)
    return int(edges[day]), int(edges[day + 1])


def _hours(plan: FleetScenario, day: int, count: int, random: np.random.Generator) -> Floats:
    hours = distributions().arrivals.reshape(7, 24)[day % 7]
    drawn = random.choice(24, count, p=hours / hours.sum())
    return np.asarray(EPOCH + day * DAY + 3600.0 * drawn, dtype=np.float64)


def _durations(sizes: Ints, random: np.random.Generator) -> Floats:
    """From the quantiles of the size, with straight lines between their logarithms."""
    told = distributions()
    level = random.random(sizes.size)
    wall = np.empty(sizes.size)
    for size in range(told.sizes.size):
        chosen = sizes == size
        wall[chosen] = np.exp(np.interp(level[chosen], told.levels, np.log(told.durations[size])))
    return wall


def _values(plan: FleetScenario, name: str, slices: Ints, start: Floats) -> NDArray[np.str_]:
    """The value that each job's field had when it began."""
    found = np.empty(slices.size, dtype="<U24")
    for number in np.unique(slices):
        line = plan.rollouts[name][number]
        chosen = slices == number
        moments = np.array([one.at for one in line])
        index = np.searchsorted(moments, start[chosen], side="right") - 1
        found[chosen] = np.array([one.value for one in line])[np.maximum(index, 0)]
    return found
