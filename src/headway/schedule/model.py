"""Nodes, jobs and tenants of a cluster as eviction policies see them; sim drives them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

INFINITY = math.inf


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job in a trace; times are in seconds."""

    submit: float
    work: float
    gpus: int
    tenant: str


class Job:
    """A job in a simulation. Policies read it; only the engine changes it."""

    __slots__ = (
        "attempts",
        "ended_at",
        "faults",
        "first_start",
        "gpus",
        "held_s",
        "in_quota",
        "interval",
        "lost_s",
        "number",
        "overhead",
        "phase",
        "placement",
        "preemptions",
        "queued_s",
        "queued_since",
        "recover",
        "recovery_s",
        "reports_cost",
        "retained_s",
        "save",
        "saving_s",
        "since",
        "start",
        "startup_s",
        "submit",
        "tenant",
        "version",
        "work",
    )

    def __init__(self, number: int, spec: JobSpec, tenant: int) -> None:
        self.number = number
        self.submit = spec.submit
        self.work = spec.work
        self.gpus = spec.gpus
        self.tenant = tenant
        # -- properties
        self.start = 0.0  # from its first start to training
        self.recover = 0.0  # from each later start to training
        self.save = 0.0  # time that a save blocks training; then it is durable
        self.interval = INFINITY  # of training between two saves
        self.phase = INFINITY  # of training before the first save of an attempt
        self.reports_cost = True  # reports its eviction cost, and saves on notice
        # -- state
        self.placement: tuple[tuple[int, int], ...] = ()  # pairs of node and number of accelerators
        self.since = 0.0  # start of the attempt
        self.overhead = 0.0  # of the attempt, before it trains
        self.queued_since = spec.submit
        self.ended_at: float | None = None
        self.version = 0  # invalidates scheduled events
        # -- totals, in seconds of the job
        self.in_quota = False
        self.first_start: float | None = None
        self.attempts = self.preemptions = self.faults = 0
        self.retained_s = self.lost_s = self.startup_s = self.recovery_s = self.saving_s = 0.0
        self.held_s = self.queued_s = 0.0

    def progress(self, now: float) -> tuple[float, float, float]:
        """Seconds of this attempt: trained, durable part of it, and time blocked by saves."""
        elapsed = now - self.since - self.overhead
        if elapsed <= 0.0:
            return 0.0, 0.0, 0.0
        since_first_save = elapsed - self.phase
        if since_first_save < 0.0:
            return elapsed, 0.0, 0.0
        cycle = self.interval + self.save
        saves = int(since_first_save / cycle)
        in_cycle = since_first_save - saves * cycle
        saved = self.phase + saves * self.interval
        if in_cycle < self.save:
            durable = saved - self.interval if saves else 0.0
            return saved, durable, saves * self.save + in_cycle
        return saved + in_cycle - self.save, saved, (saves + 1) * self.save

    def unsaved(self, now: float) -> float:
        """Seconds since the newest durable checkpoint, or since the start if it reports no cost."""
        if not self.reports_cost:
            return max(now - self.since, 0.0)
        trained, durable, _ = self.progress(now)
        return trained - durable

    def ends_at(self) -> float:
        """When this attempt completes if it is not interrupted."""
        remaining = self.work - self.retained_s
        saves = math.ceil((remaining - self.phase) / self.interval) if remaining > self.phase else 0
        return self.since + self.overhead + remaining + saves * self.save


Placement = tuple[tuple[int, int], ...]


class Cluster:
    """Accelerators on nodes of equal size; only the last node may be smaller."""

    def __init__(self, gpus: int, per_node: int) -> None:
        self.gpus, self.size = gpus, min(per_node, gpus)
        full_nodes, rest = divmod(gpus, self.size)
        self.free = [self.size] * full_nodes + ([rest] if rest else [])
        self.total = gpus  # free accelerators on available nodes
        self.up = [True] * len(self.free)
        self.reserved_nodes: set[int] = set()  # for one gang; no other job is placed there
        self.jobs: list[dict[int, Job]] = [{} for _ in self.free]
        # Nodes by number of free accelerators; dicts keep insertion order.
        self._level: list[dict[int, None]] = [{} for _ in range(self.size + 1)]
        self._mask = 0  # bit n: some node has n free
        for node, free in enumerate(self.free):
            self._enter(node, free)

    @property
    def free_node_count(self) -> int:
        """Number of completely free nodes."""
        return len(self._level[self.size])

    def place(self, gpus: int) -> Placement | None:
        """A placement for a gang, on the fullest suitable node."""
        if gpus > self.total:
            return None
        if gpus < self.size:
            node = self._fullest(gpus)
            return None if node is None else ((node, gpus),)
        nodes, rest = divmod(gpus, self.size)
        if self.free_node_count < nodes:
            return None
        placement = [(node, self.size) for node in islice(self._level[self.size], nodes)]
        if rest:
            last_node = self._fullest(rest, below=self.size)
            if last_node is None:
                if self.free_node_count == nodes:
                    return None
                *_, last_node = islice(self._level[self.size], nodes + 1)
            placement.append((last_node, rest))
        return tuple(placement)

    def place_with(self, gpus: int, extra: Mapping[int, int]) -> Placement | None:
        """A placement for a gang if the given accelerators were free in addition."""
        nodes, rest = divmod(gpus, self.size)
        free = self.free
        candidates = (
            [node for node in extra if node not in self.reserved_nodes]
            if self.reserved_nodes
            else extra
        )
        nodes_by_room = sorted(candidates, key=lambda node: (free[node] + extra[node], node))
        if not nodes or gpus == self.size:
            for node in nodes_by_room:
                if free[node] + extra[node] >= gpus:
                    return ((node, gpus),)
            return self.place(gpus)
        emptied = [node for node in nodes_by_room if free[node] + extra[node] == self.size]
        emptied = [node for node in emptied if free[node] < self.size]
        needed = nodes - len(emptied)
        if needed > self.free_node_count:
            return None
        empty_nodes = list(islice(self._level[self.size], max(needed, 0)))
        placement = [(node, self.size) for node in (*emptied, *empty_nodes)[:nodes]]
        if rest:
            last_node = self._rest(rest, {node for node, _ in placement}, nodes_by_room, extra)
            if last_node is None:
                return None
            placement.append((last_node, rest))
        return tuple(placement)

    def _rest(
        self, rest: int, excluded: set[int], nodes_by_room: Iterable[int], extra: Mapping[int, int]
    ) -> int | None:
        for node in nodes_by_room:
            if node not in excluded and self.free[node] + extra[node] >= rest:
                return node
        for level in range(rest, self.size + 1):
            for node in self._level[level]:
                if node not in excluded:
                    return node
        return None

    def allocate(self, placement: Placement) -> None:
        for node, count in placement:
            self._move(node, -count)

    def release(self, node: int, count: int) -> None:
        self._move(node, count)

    def fail(self, node: int) -> None:
        """Remove a node. Its jobs must be removed first, and it must not be reserved."""
        self._leave(node, self.free[node])
        self.total -= self.free[node]
        self.up[node] = False

    def repair(self, node: int) -> None:
        self.up[node] = True
        self.total += self.free[node]
        self._enter(node, self.free[node])

    def emptiest(self, count: int) -> list[int]:
        """Up to `count` full-size nodes with the most free accelerators."""
        full_nodes = [
            node
            for node in range(len(self.free))
            if self.up[node] and node * self.size + self.size <= self.gpus
        ]
        return sorted(full_nodes, key=lambda node: (-self.free[node], node))[:count]

    def reserve(self, nodes: Iterable[int]) -> None:
        """Place no jobs on these nodes; running ones stay."""
        for node in nodes:
            self._leave(node, self.free[node])
            self.reserved_nodes.add(node)

    def release_reserved(self) -> None:
        """Release all reserved nodes."""
        for node in sorted(self.reserved_nodes):
            self._enter(node, self.free[node])
        self.reserved_nodes.clear()

    def _fullest(self, gpus: int, below: int | None = None) -> int | None:
        mask = self._mask >> gpus << gpus
        if below is not None:
            mask &= (1 << below) - 1
        if not mask:
            return None
        level = (mask & -mask).bit_length() - 1
        return next(iter(self._level[level]))

    def _move(self, node: int, count: int) -> None:
        free = self.free[node]
        self.free[node] = free + count
        if self.up[node]:
            self.total += count
            if node not in self.reserved_nodes:
                self._leave(node, free)
                self._enter(node, free + count)

    def _enter(self, node: int, free: int) -> None:
        self._level[free][node] = None
        self._mask |= 1 << free

    def _leave(self, node: int, free: int) -> None:
        level = self._level[free]
        del level[node]
        if not level:
            self._mask &= ~(1 << free)


class Tenant:
    """A virtual cluster. Accelerators above its quota are borrowed and can be reclaimed."""

    __slots__ = (
        "borrowed",
        "entitled",
        "name",
        "queued_gpus",
        "quota",
        "running",
        "served",
        "since",
        "used",
        "waiting",
    )

    def __init__(self, name: str, quota: int) -> None:
        self.name, self.quota = name, quota
        self.used = 0  # accelerators, including those reserved by placed jobs
        self.queued_gpus = 0  # accelerators that waiting jobs need
        self.running: dict[int, Job] = {}  # in the order of their starts
        # By size: jobs of one size all fit or none does, so only the first of each is tried.
        self.waiting: dict[int, list[tuple[float, int, Job]]] = {}
        self.since = 0.0
        # Accelerator-seconds: minimum of quota and demand, used within the quota, and borrowed.
        self.entitled = self.served = self.borrowed = 0.0

    @property
    def over(self) -> int:
        """Borrowed accelerators."""
        return max(self.used - self.quota, 0)

    def admits(self, gpus: int) -> bool:
        """Whether so many more accelerators stay within the quota."""
        return self.used + gpus <= self.quota

    def change(self, now: float, used: int, queued_gpus: int) -> None:
        """Account for the time since the last change, then change used and waiting accelerators."""
        elapsed = now - self.since
        if elapsed > 0.0:
            self.entitled += elapsed * min(self.used + self.queued_gpus, self.quota)
            self.served += elapsed * min(self.used, self.quota)
            self.borrowed += elapsed * self.over
            self.since = now
        self.used += used
        self.queued_gpus += queued_gpus

    def enqueue(self, job: Job, now: float) -> None:
        """Queue a job in the order of submission."""
        heapq.heappush(self.waiting.setdefault(job.gpus, []), (job.submit, job.number, job))
        self.change(now, 0, job.gpus)

    def dequeue(self, gpus: int, now: float) -> Job:
        """Remove the first waiting job of a size."""
        queue = self.waiting[gpus]
        job = heapq.heappop(queue)[2]
        if not queue:
            del self.waiting[gpus]
        self.change(now, 0, -gpus)
        return job
