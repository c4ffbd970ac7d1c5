"""Publish the eviction cost to Slurm: in the job comment and, within limits, in the nice value.

Slurm selects victims by QOS or partition, then by size, and reads neither field. The comment is
for tools that select victims by cost; the nice value changes how soon the job starts again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence

from headway.errors import SchedulerUpdateFailed, UsageError
from headway.schedule.publishers.base import PerJobPublisher, PriorityAdjustment, RunCost

OWN_COMMENT = re.compile(r"\s*\bheadway:[^\s]*")
_FIELD = r"(?:^|\s){}=(.*?)(?=\s[A-Z][\w/:]*=|$)"
_JOB = re.compile(r"\d+(?:[_+]\d+)?")
TIMEOUT_S = 30.0
UNKNOWN_JOB = "Invalid job id specified"
ACTIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED", "")  # "": no state in the output


class SlurmPublisher(PerJobPublisher):
    """Updates jobs with scontrol, with the rights of the current user."""

    def __init__(
        self,
        job: str | None = None,
        adjustment: PriorityAdjustment | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        if job is not None and not _JOB.fullmatch(job):
            raise UsageError(
                f"{job!r} is not a Slurm job; give its number, as shown by squeue",
                code="job-id-invalid",
            )
        super().__init__()
        self.job, self.adjustment, self.dry_run = job, adjustment, dry_run

    def key(self, cost: RunCost) -> str | None:
        """The given job, or the job in which the launcher runs."""
        job = self.job or cost.job
        return job if job is not None and _JOB.fullmatch(job) else None

    def publish_one(self, job: str | None, cost: RunCost) -> Iterator[str]:
        """Set the comment, and the nice value if limits are given."""
        if job is None:
            if cost.price is None:
                return
            raise SchedulerUpdateFailed(
                f"the run {cost.run} is not in a Slurm job; give the job with --job ID",
                code="run-not-in-job",
                run=cost.run,
            )
        result = _call(["scontrol", "show", "job", "-o", job])
        if result.returncode and UNKNOWN_JOB in result.stderr:
            if cost.price is None:
                return  # the job and its comment are gone
            raise SchedulerUpdateFailed(
                f"Slurm has no job {job}; give another one with --job",
                code="job-not-found",
                job=job,
            )
        _check(result, job)
        if cost.price is None and _field(result.stdout, "JobState") not in ACTIVE_STATES:
            return  # Slurm accepts no changes of finished jobs
        words = self._change(result.stdout.strip(), cost)
        command = ["scontrol", "update", f"JobId={job}", *words]
        if words and self.dry_run:
            yield f"would run {' '.join(command)}"
        elif words:
            _check(_call(command), job)
            yield f"job {job}: {' '.join(words)}"

    def _change(self, shown: str, cost: RunCost) -> list[str]:
        comment, nice = _field(shown, "Comment"), int(_field(shown, "Nice") or 0)
        own_part = OWN_COMMENT.search(comment)
        saved_nice = re.search(r",nice=(-?\d+)", own_part[0]) if own_part else None
        original_nice = int(saved_nice[1]) if saved_nice else nice  # before the first adjustment
        other_comment = OWN_COMMENT.sub("", comment).strip()
        new_nice, own_comment = original_nice, ""
        if cost.price is not None:
            own_comment = f"headway:cost={cost.price.lost:.0f},unsaved={cost.price.unsaved:.0f}"
            own_comment += f",accelerators={cost.price.accelerators},at={cost.at:.0f}"
            if self.adjustment is not None:
                new_nice = original_nice - self.adjustment.priority(cost.price)
                own_comment += f",nice={original_nice}"
        new_comment = " ".join(filter(None, (other_comment, own_comment)))
        words = [f"Comment={new_comment}"] if new_comment != comment else []
        return [*words, f"Nice={new_nice}"] if new_nice != nice else words


def _field(shown: str, name: str) -> str:
    match = re.search(_FIELD.format(name), shown)
    return "" if match is None or match[1] == "(null)" else match[1].strip()


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise UsageError(
            "scontrol not found; run this on a machine with the commands of Slurm",
            code="slurm-not-installed",
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerUpdateFailed(
            f"Slurm did not respond within {TIMEOUT_S:.0f} s", code="slurm-timeout"
        ) from None


def _check(result: subprocess.CompletedProcess[str], job: str) -> None:
    if result.returncode:
        output = (result.stderr or result.stdout).strip().splitlines() or [
            f"exit {result.returncode}"
        ]
        reason = output[-1].removeprefix("slurm_update error: ")
        raise SchedulerUpdateFailed(
            f"Slurm refused to update job {job}: {reason}",
            code="slurm-refused",
            job=job,
            reason=reason,
        )
