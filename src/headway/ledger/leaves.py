"""The vocabulary of the ledger: every leaf a second can land in, and which side it is on."""

from __future__ import annotations

from typing import Final, Literal

Side = Literal["effective", "idleness", "failure"]

# In the order in which a job passes through them; reports keep this order.
START_STAGES: Final = (
    "scheduling",
    "hardware_setup",
    "launcher_init",
    "device_init",
    "process_group_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "checkpoint_load",
    "pt2_compile",
)
TRAINER_STAGES: Final = START_STAGES[3:10]  # device_init to get_first_batch_data
WASTE: Final = ("checkpoint_block", "data_stall", "recompile", "evaluation", "blocked")

EFFECTIVE: Final = "train.effective"
LOST: Final = "failure.lost_training"
HANG: Final = "failure.hang"
DETECTION: Final = "recover.detection"
DOWNTIME: Final = "recover.downtime"
SHUTDOWN: Final = "stop.shutdown"
PUBLISH: Final = "stop.publish"
UNKNOWN: Final = "unknown"

BUCKETS: Final = (
    *(f"start.{stage}" for stage in START_STAGES),
    EFFECTIVE,
    *(f"waste.{name}" for name in WASTE),
    LOST,
    HANG,
    DETECTION,
    DOWNTIME,
    *(f"recover.{stage}" for stage in START_STAGES),
    SHUTDOWN,
    PUBLISH,
    UNKNOWN,
)


def group(leaf: str) -> str:
    """The part of a leaf before the dot: `start`, `train`, `waste`, ... or `unknown`."""
    return leaf.partition(".")[0]


def side(leaf: str) -> Side:
    """On which side of `100 % = ETT % + idleness % + failure %` a leaf counts."""
    if leaf == EFFECTIVE:
        return "effective"
    return "failure" if group(leaf) in ("failure", "recover") else "idleness"
