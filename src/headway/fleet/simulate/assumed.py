"""What the simulated fleet takes for granted: no trace tells it, so these figures are chosen.

Seconds and shares are medians of one job; each job is off by a factor that is log-normal with the
sigma beside it, and each slice and each of its days by one of its own.
"""

from __future__ import annotations

TEAMS, MODELS = 10, 5
UNEVEN = 0.4  # sigma of the sizes of slices
GPUS = 8  # accelerators of a host
BUSY = 0.7  # share of a host's time that is used

# Seconds of each stage of a start, in order; process groups take this for each doubling of ranks.
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
# Shares of the loop that are no training.
WASTE = {
    "checkpoint_block": 0.010,
    "data_stall": 0.020,
    "recompile": 0.002,
    "evaluation": 0.015,
    "blocked": 0.008,
}
WASTE_SIGMA = 0.5
SLICE_SIGMA = 0.4  # slices differ from each other
DAY_SIGMA = 0.1  # days of a slice differ from each other

DETECTION_S, DOWNTIME_S = 45.0, 90.0
SHUTDOWN_S = 8.0
SAVE_EVERY_S = 1800.0
STEP_S = 0.5
SPOT_SLICES = 5
LEMON = 25.0  # times as many faults as another host

HOST_TYPES = ("gpu-a", "gpu-b", "gpu-c")
SPOT_TYPE = "spot-a"
# Of jobs that fail for reasons of their own.
USER_FAILURES = {"user_code": 0.5, "data_pipeline": 0.2, "host_oom": 0.2, "gpu_oom": 0.1}
# Days between two new values of a field that mean nothing.
ROLLOUTS = {"code": 9.0, "config": 13.0, "image": 28.0, "torch": 60.0}
