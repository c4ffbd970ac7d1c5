"""A trace: jobs by submission, and what can be done to all of them alike."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headway.errors import UsageError
from headway.schedule.simulate.job import JobSpec

DAY = 86400.0


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of their submission; the first second of it is 0."""

    name: str
    jobs: tuple[JobSpec, ...]
    days: float

    @property
    def gpu_hours(self) -> float:
        """All of their work."""
        return sum(job.work * job.gpus for job in self.jobs) / 3600

    def tenants(self) -> dict[str, float]:
        """The accelerator-hours of each tenant, by name."""
        found: dict[str, float] = {}
        for job in self.jobs:
            found[job.tenant] = found.get(job.tenant, 0.0) + job.work * job.gpus / 3600
        return dict(sorted(found.items()))

    def shifted(self, seed: int) -> Trace:
        """Each tenant's jobs moved by whole days, around the end to the start: another month.

        Weekdays of tenants no longer agree; each one's own order of jobs and hours of day stay.
        """
        span = int(self.days)
        if span < 2:
            raise UsageError(
                f"a trace of {self.days:.1f} days cannot be shifted; take a longer one",
                code="trace-too-short",
            )
        draw = random.Random(seed)
        offset = {name: draw.randrange(span) * DAY for name in self.tenants()}
        moved = (
            replace(job, submit=(job.submit + offset[job.tenant]) % (span * DAY))
            for job in self.jobs
        )
        return Trace(self.name, by_submission(moved), self.days)


def by_submission(jobs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """In the order in which they come; equals stay as they are."""
    return tuple(sorted(jobs, key=lambda job: job.submit))


def epoch_seconds(text: str) -> float:
    """A date and time without a zone; no hour is left out or told twice, as local clocks do."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def make_trace(name: str, jobs: Sequence[JobSpec]) -> Trace:
    """From jobs in any order, on any clock."""
    if not jobs:
        raise UsageError(
            f"the trace {name} has no job that used an accelerator; give another one",
            code="trace-empty",
        )
    first = min(job.submit for job in jobs)
    ordered = by_submission(replace(job, submit=job.submit - first) for job in jobs)
    return Trace(name, ordered, max(ordered[-1].submit / DAY, 1.0))
