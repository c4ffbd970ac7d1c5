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
ACTIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED", "")  # the last: it is not told


class SlurmPublisher(PerJobPublisher):
    """Through scontrol, which asks slurmctld as the user that it is run by."""

    def __init__(
        self,
        job: str | None = None,
        adjustment: PriorityAdjustment | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        if job is not None and not _JOB.fullmatch(job):
            raise UsageError(
                f"{job!r} is no job of Slurm; give its number, as squeue shows it",
                code="job-id-invalid",
            )
        super().__init__()
        self.job, self.adjustment, self.dry_run = job, adjustment, dry_run

    def key(self, cost: RunCost) -> str | None:
        """The job that was named, or the one that the run's launcher saw."""
        job = self.job or cost.job
        return job if job is not None and _JOB.fullmatch(job) else None

    def publish_one(self, job: str | None, cost: RunCost) -> Iterator[str]:
        """Its comment, and its nice value where there are limits for it."""
        if job is None:
            if cost.price is None:
                return
            raise SchedulerUpdateFailed(
                f"the run {cost.run} is in no job of Slurm; give it by --job ID",
                code="run-not-in-job",
                run=cost.run,
            )
        result = _call(["scontrol", "show", "job", "-o", job])
        if result.returncode and UNKNOWN_JOB in result.stderr:
            if cost.price is None:
                return  # gone, and its comment with it
            raise SchedulerUpdateFailed(
                f"Slurm knows no job {job}; give another one by --job",
                code="job-not-found",
                job=job,
            )
        _check(result, job)
        if cost.price is None and _field(result.stdout, "JobState") not in ACTIVE_STATES:
            return  # Slurm forgets it soon, and takes no change until then
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
        original_nice = (
            int(saved_nice[1]) if saved_nice else nice
        )  # as it was before the first nudge
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
            "there is no scontrol here; run this where Slurm's commands are installed",
            code="slurm-not-installed",
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerUpdateFailed(
            f"Slurm did not answer in {TIMEOUT_S:.0f} s", code="slurm-timeout"
        ) from None


def _check(result: subprocess.CompletedProcess[str], job: str) -> None:
    if result.returncode:
        output = (result.stderr or result.stdout).strip().splitlines() or [
            f"exit {result.returncode}"
        ]
        reason = output[-1].removeprefix("slurm_update error: ")
        raise SchedulerUpdateFailed(
            f"Slurm refused job {job}: {reason}", code="slurm-refused", job=job, reason=reason
        )
