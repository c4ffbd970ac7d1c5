"""Parameters of the simulated fleet: assumptions, and distributions from public traces.

No trace contains the assumed parameters, so they are chosen. Seconds and shares are medians of one
job; each job differs by a log-normal factor with the given sigma, and each slice and each of
its days by another one. NOTICE.md names the traces.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

TEAMS, MODELS = 10, 5
UNEVEN = 0.4  # sigma of the sizes of slices
GPUS = 8  # accelerators per host
BUSY = 0.7  # utilization of hosts

# Seconds of each stage of a start, in order; process_group_init takes this per doubling of ranks.
STAGES = {
    "scheduling": 4.0,
    "hardware_setup": 40.0,
    "launcher_init": 5.0,
    "device_init": 3.0,
    "process_group_init": 1.5,
    "preproc_creation": 4.0,
    "train_module_creation": 8.0,
    "init_plugins": 1.0,
    "pre_train": 2.0,
    "get_first_batch_data": 6.0,
    "checkpoint_load": 12.0,
    "pt2_compile": 75.0,
}
STAGE_SIGMA = 0.4
# Shares of the loop that are not training.
WASTE = {
    "checkpoint_block": 0.010,
    "data_stall": 0.020,
    "recompile": 0.002,
    "evaluation": 0.015,
    "blocked": 0.008,
}
WASTE_SIGMA = 0.5
SLICE_SIGMA = 0.4  # between slices
DAY_SIGMA = 0.1  # between days of a slice

DETECTION_S, DOWNTIME_S = 45.0, 90.0
SHUTDOWN_S = 8.0
SAVE_EVERY_S = 1800.0
STEP_S = 0.5
SPOT_SLICES = 5
LEMON = 25.0  # factor on the faults of a host

HOST_TYPES = ("gpu-a", "gpu-b", "gpu-c")
SPOT_TYPE = "spot-a"
# Failures that are not caused by hosts.
USER_FAILURES = {"user_code": 0.5, "data_pipeline": 0.2, "host_oom": 0.2, "gpu_oom": 0.1}
# Mean days between new values of a field that have no effect.
ROLLOUTS = {"code": 9.0, "config": 13.0, "image": 28.0, "torch": 60.0}


@dataclass(frozen=True)
class TraceDistributions:
    """Sizes, durations, arrivals and outcomes of jobs; rates of host faults and spot reclaims."""

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
        """Mean accelerator-seconds of a job."""
        return float((self.size_shares * self.sizes * self._mean_durations()).sum())

    @property
    def mean_wall(self) -> float:
        """Mean wall seconds of a job, weighted by accelerators."""
        return self.accelerator_s / float((self.size_shares * self.sizes).sum())

    def _mean_durations(self) -> NDArray[np.float64]:
        middle = (self.durations[:, 1:] + self.durations[:, :-1]) / 2
        return np.asarray((middle * np.diff(self.levels)).sum(axis=1))


@functools.cache
def distributions() -> TraceDistributions:
    """The distributions in tables.json."""
    text = resources.files("headway.sim.fleet").joinpath("tables.json").read_text()
    content = json.loads(text)
    jobs = content["philly"]
    return TraceDistributions(
        sizes=np.array(jobs["sizes"]),
        size_shares=_shares(jobs["jobs_by_size"]),
        levels=np.array(jobs["duration_levels"]),
        durations=np.array(jobs["durations_s"]),
        arrivals=_shares(jobs["jobs_by_hour_of_week"]),
        faults_per_node_day=content["faults"]["per_node_day"],
        fault_kinds=dict(content["faults"]["kinds"]),
        spot_per_node_hour=content["spot"]["per_node_hour"],
        outcomes=dict(content["outcomes"]),
    )


def _shares(counts: list[int]) -> NDArray[np.float64]:
    values = np.array(counts, dtype=np.float64)
    return np.asarray(values / values.sum())
