"""Output of a real Slurm 22.05: three jobs hold four accelerators, three wait.

Job 1 (1 accelerator, an `exec`), job 2 (1, an srun step) and job 3 (2, a plain script, of another
account) are low; 4 (1) is high and waits for resources, 5 (2, high) and 6 (low) wait behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headway.errors import SlurmRefused
from headway.schedule.slurm.cluster import (
    JOBS_COMMAND,
    NODES_COMMAND,
    QOS_COMMAND,
    STEPS_COMMAND,
    SlurmJob,
)
from headway.schedule.slurm.controller import RunIndex
from headway.schedule.slurm.eviction import FINAL_STATE_COMMAND
from headway.schedule.slurm.victims import RunStatus

FOLDER = Path(__file__).parent / "slurm"
FILES = {
    JOBS_COMMAND: "jobs.json",
    STEPS_COMMAND: "steps.txt",
    NODES_COMMAND: "nodes.txt",
    QOS_COMMAND: "qos.txt",
}
CONFIG = (FOLDER / "config.txt").read_text()


class RecordedSlurm:
    """Prints recorded output, and records other commands."""

    def __init__(self) -> None:
        self.answers = {words: (FOLDER / name).read_text() for words, name in FILES.items()}
        self.done: list[tuple[str, ...]] = []
        self.refuses: set[str] = set()
        self.ended = "COMPLETED"  # how a job that is not told of any more has ended

    def __call__(self, *words: str) -> str:
        if words in self.answers:
            return self.answers[words]
        if words[:3] == ("scontrol", "write", "batch_script"):
            return (FOLDER / ("exec.sh" if words[3] == "1" else "plain.sh")).read_text()
        if words[: len(FINAL_STATE_COMMAND)] == FINAL_STATE_COMMAND:
            return f"{self.ended}\n"
        self.done.append(words)
        if words[0] in self.refuses:
            raise SlurmRefused(f"`{' '.join(words)}` failed: Access/permission denied")
        return ""

    def becomes(self, number: int, **fields: object) -> None:
        """Change the fields of a job from now on; without fields, remove the job."""
        content = json.loads(self.answers[JOBS_COMMAND])
        for row in [row for row in content["jobs"] if row["job_id"] == number]:
            row.update(fields)
            if not fields:
                content["jobs"].remove(row)
        self.answers[JOBS_COMMAND] = json.dumps(content)


class FixedRunIndex(RunIndex):
    """Runs with a given status."""

    def __init__(self, statuses: Mapping[int, RunStatus]) -> None:
        super().__init__()
        self.statuses = dict(statuses)

    def status(self, job: SlurmJob) -> RunStatus | None:
        return self.statuses.get(job.number)


def run_status(
    *,
    unsaved: float = 100.0,
    saved_at: float | None = 1.0,
    save: float | None = 5.0,
    recover: float = 60.0,
    preemptions: int = 0,
    outcome: str = "running",
) -> RunStatus:
    return RunStatus(
        unsaved=unsaved,
        saved_at=saved_at,
        save=save,
        recover=recover,
        preemptions=preemptions,
        outcome=outcome,
    )
