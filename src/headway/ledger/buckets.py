"""The buckets of the ledger: names, groups, sides, labels, meanings and colors."""

from __future__ import annotations

from typing import Final, Literal

from headway.taxonomy import START_STAGES, WASTE

Side = Literal["effective", "idleness", "failure"]


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


def group(bucket: str) -> str:
    """Return the part of a bucket before the dot: `start`, `train`, `waste`, ... or `unknown`."""
    return bucket.partition(".")[0]


def side(bucket: str) -> Side:
    """Return the side of `100 % = ETT % + idleness % + failure %` on which a bucket counts."""
    if bucket == EFFECTIVE:
        return "effective"
    return "failure" if group(bucket) in ("failure", "recover") else "idleness"


def stage_of(bucket: str) -> str:
    """Return a bucket without its group: `start.pt2_compile` gives `pt2_compile`."""
    return bucket.rpartition(".")[2]


GROUPS: Final = ("start", "train", "waste", "failure", "recover", "stop", "unknown")


LABELS = {
    "waste.checkpoint_block": "checkpoints",
    "waste.data_stall": "data stalls",
    "waste.recompile": "recompiles",
    "waste.evaluation": "evaluation",
    "waste.blocked": "blocked",
    "failure.hang": "hang",
}


_STAGE_MEANING: Final = {
    "scheduling": "waiting for the scheduler",
    "hardware_setup": "setting up the machine",
    "launcher_init": "launcher, Python and imports",
    "device_init": "initializing the device",
    "process_group_init": "connecting the ranks",
    "preproc_creation": "building the data pipeline",
    "train_module_creation": "building the model",
    "init_plugins": "starting plugins",
    "pre_train": "other work before the loop",
    "get_first_batch_data": "waiting for the first batch",
    "checkpoint_load": "loading the checkpoint",
    "pt2_compile": "torch.compile: import, compiles",
}
# At most 32 characters each: a terminal shows them next to the bars.
MEANING: Final = {
    **{f"start.{name}": text for name, text in _STAGE_MEANING.items()},
    **{f"recover.{name}": text for name, text in _STAGE_MEANING.items()},
    "train.effective": "training on new data",
    "waste.checkpoint_block": "training stopped for a save",
    "waste.data_stall": "waiting for the next batch",
    "waste.recompile": "compiling again",
    "waste.evaluation": "evaluating between steps",
    "waste.blocked": "training blocked by other work",
    "failure.lost_training": "trained, then rolled back",
    "failure.hang": "alive, but no steps",
    "recover.detection": "dead, but not yet detected",
    "recover.downtime": "detected, but not yet restarted",
    "stop.shutdown": "after the last step",
    "stop.publish": "making the model ready to serve",
    "unknown": "not covered by any event",
}
GROUP_MEANING: Final = {
    "start": "before the first training step",
    "train": "training on new data",
    "waste": "between training steps",
    "failure": "work that was lost",
    "recover": "from a failure to training again",
    "stop": "after the last training step",
    "unknown": "not covered by any event",
}


def _oklch_by_bucket() -> dict[str, tuple[float, float, float]]:
    """Lightness, chroma and hue in OKLCH."""
    shades = {
        "train.effective": (0.66, 0.13, 164.0),
        "waste.checkpoint_block": (0.77, 0.155, 72.0),
        "waste.data_stall": (0.85, 0.16, 92.0),
        "waste.recompile": (0.70, 0.165, 52.0),
        "waste.evaluation": (0.90, 0.11, 104.0),
        "waste.blocked": (0.66, 0.10, 75.0),
        "failure.lost_training": (0.62, 0.20, 25.0),
        "failure.hang": (0.48, 0.17, 20.0),
        "recover.detection": (0.52, 0.19, 355.0),
        "recover.downtime": (0.66, 0.19, 358.0),
        "stop.shutdown": (0.60, 0.05, 210.0),
        "stop.publish": (0.74, 0.06, 200.0),
        UNKNOWN: (0.72, 0.01, 260.0),
    }
    for place, stage in enumerate(START_STAGES):
        # Neighbors differ in lightness too, because hue alone is hard to see for some readers.
        lift = (0.0, 0.14, 0.07)[place % 3]
        shades[f"start.{stage}"] = (0.54 + lift, 0.145, 232.0 + 4.0 * place)
        shades[f"recover.{stage}"] = (0.58 + lift, 0.15, 345.0 - 4.0 * place)
    return shades


OKLCH: Final = _oklch_by_bucket()
