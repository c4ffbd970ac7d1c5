"""What Slurm says of a job."""

from __future__ import annotations

from headway.launch.failures.verdict import Fact


def ask_slurm() -> list[Fact]:
    """What `scontrol show job $SLURM_JOB_ID` says, if this is a Slurm job."""
    return []
