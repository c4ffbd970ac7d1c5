"""Ray: whether the job still runs; the price goes to a file for Prometheus.

Ray has no place for it: no part of it asks what an eviction costs, and its Jobs API takes the
metadata of a job when that is submitted and never again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from headway.errors import SchedulerUpdateFailed, UsageError
from headway.schedule.publish.api import Api
from headway.schedule.publish.file import FilePublisher
from headway.schedule.publish.offer import RunCost

FINISHED_STATES = ("STOPPED", "SUCCEEDED", "FAILED")
_RAY_JOB = re.compile(r"[\w.-]{1,200}")


class RayPublisher:
    """One run, and the job of Ray that it is."""

    def __init__(self, api: Api, job: str, file: FilePublisher) -> None:
        if not _RAY_JOB.fullmatch(job):
            raise UsageError(
                f"{job!r} is no job of Ray; give what `ray job list` shows", code="job-id-invalid"
            )
        self.api, self.job, self.file = api, job, file

    def tell(self, offers: list[RunCost]) -> Iterable[str]:
        """With the job's name; without a price where Ray says that it has ended."""
        if len({one.run for one in offers}) > 1:
            raise UsageError(
                "--to ray is for one run; name it instead of the folder of several",
                code="several-runs",
            )
        found = self.api.get(f"/api/jobs/{self.job}")
        if found is None and any(one.price is not None for one in offers):
            raise SchedulerUpdateFailed(
                f"Ray knows no job {self.job}; give another one by --job",
                code="job-not-found",
                job=self.job,
            )
        over = found is None or found.get("status") in FINISHED_STATES
        named = [replace(one, job=self.job) for one in offers]
        return self.file.tell([replace(one, price=None) if over else one for one in named])
