"""Headway's policy: who costs least for each accelerator that is freed goes first.

Not the set of least price in all: that one is made of small jobs, one for each waiter, again and
again. What a large victim leaves beyond the need keeps the next waiters from evicting anybody.
Each mechanism is a field; 0 or False turns it off. Protected jobs go only where nobody else can:
quota comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.eviction_cost import eviction_cost
from headway.schedule.policies.cover import select_victims
from headway.schedule.policies.policy import PreemptionContext
from headway.schedule.simulate.job import Job


@dataclass(frozen=True, kw_only=True)
class LeastCost:
    """By the price of an eviction: see headway.schedule.cost."""

    notice: bool = True
    stagger: bool = False
    reserve: float = 0.0  # seconds after which nodes are held back for a gang; 0: never
    phase: bool = False  # nobody goes before the first durable checkpoint of its attempt
    cap: int = 10  # nobody goes more often
    repeat: float = 60.0  # seconds, for each earlier preemption
    nominal: bool = True  # below its tenant's quota nothing is freed: that would be reclaimed
    each: float = 1800.0  # accelerator-seconds, for each victim: fewer and larger ones

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The cheapest ones without a protected job; only if there are none, with some."""
        over = [tenant.over for tenant in scene.tenants]

        def rate(job: Job) -> tuple[float, int]:
            freed = min(job.gpus, over[job.tenant]) if self.nominal else job.gpus
            return self.price(job, scene) / freed, job.number

        order = sorted(scene.candidates(), key=rate)
        exposed = [job for job in order if not self._protected(job, scene.now)]
        return select_victims(scene, exposed) or select_victims(scene, order)

    def price(self, job: Job, scene: PreemptionContext) -> float:
        """Accelerator-seconds."""
        return self.each + eviction_cost(
            job.gpus,
            job.unsaved(scene.now),
            job.recover,
            save=job.save if job.listens else None,
            grace=scene.grace if self.notice else 0.0,
            preemptions=job.preemptions,
            repeat=self.repeat,
        )

    def _protected(self, job: Job, now: float) -> bool:
        if self.cap and job.preemptions >= self.cap:
            return True
        return self.phase and job.listens and not job.progress(now)[1]
