"""What public traces say of jobs, faults and spot machines; NOTICE.md names them."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TraceDistributions:
    """Sizes, durations and arrivals of jobs; how often hosts break or are taken away; outcomes."""

    sizes: NDArray[np.int64]
    size_shares: NDArray[np.float64]
    levels: NDArray[np.float64]
    durations: NDArray[np.float64]  # a row per size, a column per level, in seconds
    arrivals: NDArray[np.float64]  # share of the jobs by hour of the week, from Monday
    faults_per_node_day: float
    fault_kinds: dict[str, float]
    spot_per_node_hour: float
    outcomes: dict[str, float]

    @property
    def accelerator_s(self) -> float:
        """Accelerator-seconds of a job, on average."""
        return float((self.size_shares * self.sizes * self._mean_durations()).sum())

    @property
    def mean_wall(self) -> float:
        """Wall seconds of a job on average, where each of its accelerators counts."""
        return self.accelerator_s / float((self.size_shares * self.sizes).sum())

    def _mean_durations(self) -> NDArray[np.float64]:
        middle = (self.durations[:, 1:] + self.durations[:, :-1]) / 2
        return np.asarray((middle * np.diff(self.levels)).sum(axis=1))


@functools.cache
def distributions() -> TraceDistributions:
    """The tables that come with the package."""
    text = resources.files("headway.sim.fleet").joinpath("tables.json").read_text()
    told = json.loads(text)
    jobs = told["philly"]
    return TraceDistributions(
        sizes=np.array(jobs["sizes"]),
        size_shares=_shares(jobs["jobs_by_size"]),
        levels=np.array(jobs["duration_levels"]),
        durations=np.array(jobs["durations_s"]),
        arrivals=_shares(jobs["jobs_by_hour_of_week"]),
        faults_per_node_day=told["faults"]["per_node_day"],
        fault_kinds=dict(told["faults"]["kinds"]),
        spot_per_node_hour=told["spot"]["per_node_hour"],
        outcomes=dict(told["outcomes"]),
    )


def _shares(counts: list[int]) -> NDArray[np.float64]:
    found = np.array(counts, dtype=np.float64)
    return np.asarray(found / found.sum())
