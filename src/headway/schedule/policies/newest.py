"""Whoever started last goes first: Kueue's default, and Slurm's `youngest_first`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.schedule.policies.cover import select_victims
from headway.schedule.policies.policy import PreemptionContext
from headway.schedule.simulate.job import Job


@dataclass(frozen=True, kw_only=True)
class Newest:
    """By the start of the attempt."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The newest ones."""
        order = sorted(scene.candidates(), key=lambda job: (-job.since, job.number))
        return select_victims(scene, order)
