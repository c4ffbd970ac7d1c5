"""Random traces, and a policy wrapper that checks the conservation laws of the cluster."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.schedule.model import Job, JobSpec
from headway.schedule.preemption import PreemptionContext
from headway.sim.traces import Trace, make_trace


def poisson_trace(
    count: int, rate: float, mean: float, seed: int, gpus: int = 1, tenant: str = "a"
) -> Trace:
    """Arrivals and durations at random: what queueing theory speaks of."""
    draw = random.Random(seed)
    at, jobs = 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        jobs.append(JobSpec(at, draw.expovariate(1 / mean), gpus, tenant))
    return make_trace("poisson", jobs)


class AuditedPolicy:
    """Another policy, with the laws of the cluster checked whenever it is asked."""

    def __init__(self, policy: object) -> None:
        self.policy = policy
        self.notice: bool = policy.notice  # type: ignore[attr-defined]
        self.stagger: bool = policy.stagger  # type: ignore[attr-defined]
        self.reserve = float(getattr(policy, "reserve", 0.0))
        self.asked = 0

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        self.asked += 1
        check_conservation(scene)
        chosen: Sequence[Job] = self.policy.victims(scene)  # type: ignore[attr-defined]
        for job in chosen:
            assert scene.tenants[job.tenant].over > 0, "a victim's tenant borrows nothing"
            assert job.tenant != scene.waiter.tenant
        if chosen:
            for job in chosen:
                rest = [other for other in chosen if other is not job]
                freed: dict[int, int] = {}
                for other in rest:
                    for node, count in other.placement:
                        freed[node] = freed.get(node, 0) + count
                found = scene.cluster.place_with(scene.waiter.gpus, freed)
                assert found is None, "one victim too many"
        return chosen


def check_conservation(scene: PreemptionContext) -> None:
    """No accelerator is counted twice, and what each tenant uses is what its jobs hold."""
    cluster = scene.cluster
    held: dict[int, int] = {}
    for number, tenant in enumerate(scene.tenants):
        assert tenant.used == sum(job.gpus for job in tenant.running.values())
        for job in tenant.running.values():
            assert job.tenant == number
            assert sum(count for _, count in job.placement) == job.gpus
            for node, count in job.placement:
                assert cluster.up[node]
                held[node] = held.get(node, 0) + count
    for node, free in enumerate(cluster.free):
        last = node == len(cluster.free) - 1 and cluster.gpus % cluster.size
        size = cluster.gpus % cluster.size if last else cluster.size
        # What victims have not left yet belongs to nobody else: less than all may be told.
        assert 0 <= free <= size - held.get(node, 0)
    assert cluster.total == sum(f for f, up in zip(cluster.free, cluster.up, strict=True) if up)
