"""The largest goes first: the fewest evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.schedule.policies.cover import select_victims
from headway.schedule.policies.policy import PreemptionContext
from headway.schedule.simulate.job import Job


@dataclass(frozen=True, kw_only=True)
class Largest:
    """By accelerators; of equals, the newest."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The largest ones."""
        order = sorted(scene.candidates(), key=lambda job: (-job.gpus, -job.since, job.number))
        return select_victims(scene, order)
