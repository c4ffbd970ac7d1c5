"""The policy protocol, its input, and the search for a minimal set of victims.

Victims are selected as Kueue does it: take candidates in order until the waiting job fits, then
walk back and drop every candidate that turned out not to be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headway.schedule.model import Cluster, Job, Tenant


class PreemptionContext:
    """A waiting job within its quota, and the cluster with the tenants that have borrowed."""

    __slots__ = ("cluster", "grace", "now", "tenants", "waiter")

    def __init__(
        self, now: float, waiter: Job, cluster: Cluster, tenants: Sequence[Tenant], grace: float
    ) -> None:
        self.now, self.waiter, self.cluster, self.tenants = now, waiter, cluster, tenants
        self.grace = grace  # seconds from the notice to the kill

    def candidates(self) -> list[Job]:
        """All jobs of tenants above their quota."""
        return [
            job
            for tenant in self.tenants
            if tenant.used > tenant.quota
            for job in tenant.running.values()
            if job.since <= self.now
        ]

    def can_fit(self) -> bool:
        """Whether the waiting job would fit if all candidates were evicted."""
        free, wanted, size = self.cluster.free, self.waiter.gpus, self.cluster.size
        extra = freed_accelerators(self.candidates())
        if wanted <= size:
            return any(free[node] + count >= wanted for node, count in extra.items())
        emptied = sum(free[node] < size == free[node] + count for node, count in extra.items())
        return emptied + self.cluster.free_node_count >= wanted // size

    def respects_quota(self, victims: Iterable[Job]) -> bool:
        """Whether each victim, in some order, is taken from a tenant that still borrows."""
        sums: dict[int, tuple[int, int]] = {}
        for job in victims:
            total, largest = sums.get(job.tenant, (0, 0))
            sums[job.tenant] = (total + job.gpus, max(largest, job.gpus))
        return all(
            total - largest < self.tenants[tenant].over for tenant, (total, largest) in sums.items()
        )


class Policy(Protocol):
    """Chooses the victims. The engine rejects a choice that violates a quota or makes no room.

    A policy may have an attribute `reserve`: nodes are reserved for a gang that has waited so many
    seconds within its quota and for which no job can be evicted.
    """

    @property
    def notice(self) -> bool:
        """Whether victims are notified, and may save within the grace period."""

    @property
    def stagger(self) -> bool:
        """Whether first saves are spread over the interval."""

    def victims(self, context: PreemptionContext) -> Sequence[Job]:
        """The jobs to evict so that the waiting job starts; none: it keeps waiting."""


def freed_accelerators(victims: Iterable[Job]) -> dict[int, int]:
    """Accelerators that these jobs hold, by node."""
    extra: dict[int, int] = {}
    for job in victims:
        for node, count in job.placement:
            extra[node] = extra.get(node, 0) + count
    return extra


def select_victims(context: PreemptionContext, order: Iterable[Job]) -> Sequence[Job]:
    """The first jobs that make room, as few as possible; none if there is no such set.

    A tenant gives up jobs while it borrows: only its last victim may bring it below its quota.
    """
    cluster, wanted = context.cluster, context.waiter.gpus
    single = wanted <= cluster.size
    size = wanted if single else cluster.size
    borrowed = [tenant.over for tenant in context.tenants]
    extra: dict[int, int] = {}
    candidates: list[Job] = []
    for job in order:
        if borrowed[job.tenant] <= 0:
            continue
        borrowed[job.tenant] -= job.gpus
        candidates.append(job)
        has_room = False
        for node, count in job.placement:
            extra[node] = extra.get(node, 0) + count
            has_room = has_room or cluster.free[node] + extra[node] >= size
        if has_room and (places := cluster.place_with(wanted, extra)) is not None:
            nodes = {node for node, _ in places}
            return prune_victims(
                context, [job for job in candidates if any(n in nodes for n, _ in job.placement)]
            )
    return ()


def prune_victims(context: PreemptionContext, victims: Sequence[Job]) -> Sequence[Job]:
    """Drop the victims that are not needed, starting with the last."""
    needed = list(victims)
    extra = freed_accelerators(needed)
    for job in reversed(victims):
        without = dict(extra)
        for node, count in job.placement:
            without[node] -= count
        if context.cluster.place_with(context.waiter.gpus, without) is not None:
            needed.remove(job)
            extra = {node: count for node, count in without.items() if count}
    return needed
