"""The policy protocol, its input, and the search for a minimal set of victims.

Victims are selected as Kueue does it: take candidates in order until the waiting job fits, then
walk back and drop every candidate that turned out not to be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headway.schedule.model import Cluster, Job, Tenant


class PreemptionContext:
    """A job within its quota waits, and others have borrowed."""

    __slots__ = ("cluster", "grace", "now", "tenants", "waiter")

    def __init__(
        self, now: float, waiter: Job, cluster: Cluster, tenants: Sequence[Tenant], grace: float
    ) -> None:
        self.now, self.waiter, self.cluster, self.tenants = now, waiter, cluster, tenants
        self.grace = grace  # seconds from the notice to the kill

    def candidates(self) -> list[Job]:
        """Every job that runs for a tenant above its quota."""
        return [
            job
            for tenant in self.tenants
            if tenant.used > tenant.quota
            for job in tenant.running.values()
            if job.since <= self.now
        ]

    def possible(self) -> bool:
        """Whether the waiter would find room if every candidate were gone."""
        free, need, size = self.cluster.free, self.waiter.gpus, self.cluster.size
        extra = freed_accelerators(self.candidates())
        if need <= size:
            return any(free[node] + count >= need for node, count in extra.items())
        cleared = sum(free[node] < size == free[node] + count for node, count in extra.items())
        return cleared + self.cluster.whole >= need // size

    def lawful(self, victims: Iterable[Job]) -> bool:
        """Whether each of them, in some order, is taken from a tenant that still borrows."""
        sums: dict[int, tuple[int, int]] = {}
        for job in victims:
            total, largest = sums.get(job.tenant, (0, 0))
            sums[job.tenant] = (total + job.gpus, max(largest, job.gpus))
        return all(
            total - largest < self.tenants[tenant].over for tenant, (total, largest) in sums.items()
        )


class Policy(Protocol):
    """Chooses who goes. The engine refuses a choice that breaks quota or starts nothing.

    It may have `reserve`: nodes are held back for a gang that waits so many seconds within its
    quota and for which nobody can be evicted.
    """

    @property
    def notice(self) -> bool:
        """Whether a victim is told, and may save within the grace period."""

    @property
    def stagger(self) -> bool:
        """Whether first saves are spread over the interval."""

    def victims(self, scene: PreemptionContext) -> Sequence[Job]:
        """The jobs to evict so that the waiter starts; none: it waits."""


def freed_accelerators(victims: Iterable[Job]) -> dict[int, int]:
    """Accelerators on each node that these hold."""
    extra: dict[int, int] = {}
    for job in victims:
        for node, count in job.places:
            extra[node] = extra.get(node, 0) + count
    return extra


def select_victims(scene: PreemptionContext, order: Iterable[Job]) -> Sequence[Job]:
    """The first of them that make room, as few as possible; none if there is no such set.

    A tenant gives while it borrows: only its last one may bring it below its quota.
    """
    cluster, need = scene.cluster, scene.waiter.gpus
    single = need <= cluster.size
    size = need if single else cluster.size
    left = [tenant.over for tenant in scene.tenants]
    extra: dict[int, int] = {}
    taken: list[Job] = []
    for job in order:
        if left[job.tenant] <= 0:
            continue
        left[job.tenant] -= job.gpus
        taken.append(job)
        room = False
        for node, count in job.places:
            extra[node] = extra.get(node, 0) + count
            room = room or cluster.free[node] + extra[node] >= size
        if room and (places := cluster.place_with(need, extra)) is not None:
            nodes = {node for node, _ in places}
            return prune_victims(
                scene, [job for job in taken if any(n in nodes for n, _ in job.places)]
            )
    return ()


def prune_victims(scene: PreemptionContext, victims: Sequence[Job]) -> Sequence[Job]:
    """Without those that need not go, the last of them first."""
    kept = list(victims)
    extra = freed_accelerators(kept)
    for job in reversed(victims):
        without = dict(extra)
        for node, count in job.places:
            without[node] -= count
        if scene.cluster.place_with(scene.waiter.gpus, without) is not None:
            kept.remove(job)
            extra = {node: count for node, count in without.items() if count}
    return kept
