"""A tenant: its nominal quota, what it uses, what waits, and how well it was served."""

from __future__ import annotations

import heapq

from headway.schedule.simulate.job import Job


class Tenant:
    """A virtual cluster. What it uses above its quota is borrowed, and can be reclaimed."""

    __slots__ = (
        "borrowed",
        "entitled",
        "met",
        "name",
        "quota",
        "running",
        "since",
        "used",
        "waiting",
        "wanted",
    )

    def __init__(self, name: str, quota: int) -> None:
        self.name, self.quota = name, quota
        self.used = 0  # accelerators, promised ones too
        self.wanted = 0  # by what waits
        self.running: dict[int, Job] = {}  # in the order of their starts
        # By size: all jobs of one size fit, or none; so only the first of each is looked at.
        self.waiting: dict[int, list[tuple[float, int, Job]]] = {}
        self.since = 0.0
        # Accelerator-seconds: the smaller of quota and demand, what was had of it, and more.
        self.entitled = self.met = self.borrowed = 0.0

    @property
    def over(self) -> int:
        """Accelerators that are borrowed."""
        return max(self.used - self.quota, 0)

    def admits(self, gpus: int) -> bool:
        """Whether so many more stay within the quota."""
        return self.used + gpus <= self.quota

    def change(self, now: float, used: int, wanted: int) -> None:
        """Account for the time so far, then change what is used and what waits."""
        span = now - self.since
        if span > 0.0:
            self.entitled += span * min(self.used + self.wanted, self.quota)
            self.met += span * min(self.used, self.quota)
            self.borrowed += span * self.over
            self.since = now
        self.used += used
        self.wanted += wanted

    def enqueue(self, job: Job, now: float) -> None:
        """It waits, in the order of its submission."""
        heapq.heappush(self.waiting.setdefault(job.gpus, []), (job.submit, job.number, job))
        self.change(now, 0, job.gpus)

    def dequeue(self, gpus: int, now: float) -> Job:
        """Take the first one of a size."""
        queue = self.waiting[gpus]
        job = heapq.heappop(queue)[2]
        if not queue:
            del self.waiting[gpus]
        self.change(now, 0, -gpus)
        return job
