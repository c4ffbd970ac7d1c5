"""Victims in a given order: as many as are needed, then without those that are not.

This is how Kueue does it: take candidates in order until the waiter fits, then go back and keep
whom it would fit beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.schedule.policies.policy import PreemptionContext, freed_accelerators
from headway.schedule.simulate.job import Job


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
