"""Whoever has least to lose for each accelerator goes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.schedule.policies.cover import select_victims
from headway.schedule.policies.policy import PreemptionContext
from headway.schedule.simulate.job import Job


@dataclass(frozen=True, kw_only=True)
class LeastLost:
    """By the time since the newest durable checkpoint, and the time to recover."""

    notice: bool = False
    stagger: bool = False
    reserve: float = 0.0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """Those that lose least."""
        now = scene.now
        order = sorted(
            scene.candidates(), key=lambda job: (job.unsaved(now) + job.recover, job.number)
        )
        return select_victims(scene, order)
