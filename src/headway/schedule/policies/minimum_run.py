"""Whoever started last goes first, but nobody before two hours: the rule of Meta's RSC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.schedule.policies.cover import select_victims
from headway.schedule.policies.policy import PreemptionContext
from headway.schedule.simulate.job import Job


@dataclass(frozen=True, kw_only=True)
class MinimumRun:
    """A time by the clock that every attempt is left alone."""

    seconds: float = 7200.0
    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The newest ones that are old enough."""
        latest = scene.now - self.seconds
        found = [job for job in scene.candidates() if job.since <= latest]
        return select_victims(scene, sorted(found, key=lambda job: (-job.since, job.number)))
