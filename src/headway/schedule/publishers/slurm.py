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
        self, job: str | None = None, nudge: PriorityAdjustment | None = None, *, dry: bool = False
    ) -> None:
        if job is not None and not _JOB.fullmatch(job):
            raise UsageError(
                f"{job!r} is no job of Slurm; give its number, as squeue shows it",
                code="job-id-invalid",
            )
        super().__init__()
        self.job, self.nudge, self.dry = job, nudge, dry

    def key(self, offer: RunCost) -> str | None:
        """The job that was named, or the one that the run's launcher saw."""
        job = self.job or offer.job
        return job if job is not None and _JOB.fullmatch(job) else None

    def tell_one(self, job: str | None, offer: RunCost) -> Iterator[str]:
        """Its comment, and its nice value where there are limits for it."""
        if job is None:
            if offer.price is None:
                return
            raise SchedulerUpdateFailed(
                f"the run {offer.run} is in no job of Slurm; give it by --job ID",
                code="run-not-in-job",
                run=offer.run,
            )
        shown = _call(["scontrol", "show", "job", "-o", job])
        if shown.returncode and UNKNOWN_JOB in shown.stderr:
            if offer.price is None:
                return  # gone, and its comment with it
            raise SchedulerUpdateFailed(
                f"Slurm knows no job {job}; give another one by --job",
                code="job-not-found",
                job=job,
            )
        _check(shown, job)
        if offer.price is None and _field(shown.stdout, "JobState") not in ACTIVE_STATES:
            return  # Slurm forgets it soon, and takes no change until then
        words = self._change(shown.stdout.strip(), offer)
        command = ["scontrol", "update", f"JobId={job}", *words]
        if words and self.dry:
            yield f"would run {' '.join(command)}"
        elif words:
            _check(_call(command), job)
            yield f"job {job}: {' '.join(words)}"

    def _change(self, shown: str, offer: RunCost) -> list[str]:
        comment, nice = _field(shown, "Comment"), int(_field(shown, "Nice") or 0)
        ours = OWN_COMMENT.search(comment)
        before = re.search(r",nice=(-?\d+)", ours[0]) if ours else None
        own = int(before[1]) if before else nice  # as it was before the first nudge
        kept = OWN_COMMENT.sub("", comment).strip()
        wanted, word = own, ""
        if offer.price is not None:
            word = f"headway:cost={offer.price.lost:.0f},unsaved={offer.price.unsaved:.0f}"
            word += f",accelerators={offer.price.accelerators},at={offer.at:.0f}"
            if self.nudge is not None:
                wanted = own - self.nudge.of(offer.price)
                word += f",nice={own}"
        said = " ".join(filter(None, (kept, word)))
        words = [f"Comment={said}"] if said != comment else []
        return [*words, f"Nice={wanted}"] if wanted != nice else words


def _field(shown: str, name: str) -> str:
    found = re.search(_FIELD.format(name), shown)
    return "" if found is None or found[1] == "(null)" else found[1].strip()


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


def _check(done: subprocess.CompletedProcess[str], job: str) -> None:
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
        reason = why[-1].removeprefix("slurm_update error: ")
        raise SchedulerUpdateFailed(
            f"Slurm refused job {job}: {reason}", code="slurm-refused", job=job, reason=reason
        )
