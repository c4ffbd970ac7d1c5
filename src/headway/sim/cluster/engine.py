"""Discrete-event engine of a cluster with quotas and preemption; deterministic."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from headway.errors import UsageError
from headway.schedule.model import Cluster, Job, Placement, Tenant
from headway.schedule.preemption import Policy, PreemptionContext, freed_accelerators
from headway.sim.outages import Outage

RETRY_S = 30.0  # seconds until the next try to evict for a waiting job
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are evenly distributed between 0 and 1


class Engine:
    """Simulates jobs on a cluster with tenants and a policy."""

    def __init__(
        self,
        cluster: Cluster,
        tenants: Sequence[Tenant],
        policy: Policy,
        *,
        grace: float = 0.0,
        borrow: bool = True,
    ) -> None:
        self.cluster, self.tenants, self.policy = cluster, tenants, policy
        self.grace, self.borrow = grace, borrow
        self.preemptions = 0
        self.second_order = 0  # preemptions for jobs that had been interrupted before
        self.evicted_gpu_s = 0.0  # accelerator-seconds of evicted attempts
        self.second_order_gpu_s = 0.0  # the part of second-order preemptions
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()
        self._starts = 0
        self._unfinished = 0
        self._waking = False
        self._next_try: dict[tuple[int, int], float] = {}  # by tenant and size
        # policies of other packages may not have it
        self._reserve = float(getattr(policy, "reserve", 0.0))
        self._reserved: Job | None = None  # job for which nodes are reserved

    def run(
        self,
        jobs: Sequence[Job],
        outages: Sequence[Outage] = (),
        quotas: Sequence[tuple[float, Tenant, int]] = (),
    ) -> None:
        """Simulate all jobs, sorted by submission, until the last one ends. Quotas may change over
        time.
        """
        for outage in outages:
            self._push(outage.start, self._down, outage)
        for at, tenant, gpus in quotas:
            self._push(at, self._change_quota, (tenant, gpus))
        self._unfinished = len(jobs)
        remaining = iter(jobs)
        job = next(remaining, None)
        events = self._events
        while self._unfinished:
            if job is not None and (not events or job.submit <= events[0][0]):
                self.now = job.submit
                self._arrive(job)
                job = next(remaining, None)
            elif events:
                self.now, _, handler, argument = heapq.heappop(events)
                handler(argument)
            else:
                raise UsageError(_stuck(self.tenants, self.cluster), code="job-never-starts")
        for tenant in self.tenants:
            tenant.change(self.now, 0, 0)

    def _push(self, at: float, handler: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (at, next(self._order), handler, argument))

    # -- arrival and completion of jobs

    def _arrive(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        job.in_quota = tenant.used + tenant.queued_gpus + job.gpus <= tenant.quota
        self._queue(job)

    def _queue(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        job.queued_since = self.now
        tenant.enqueue(job, self.now)
        if tenant.waiting[job.gpus][0][2] is job:  # otherwise another job of the size is ahead
            self._admit(tenant, job.gpus, reclaim=True)

    def _finish(self, attempt: tuple[Job, int]) -> None:
        job, version = attempt
        if job.version != version:  # the attempt was interrupted
            return
        self._unfinished -= 1
        remaining = job.work - job.retained_s
        job.saving_s += self.now - job.since - job.overhead - remaining
        self._account(job, self.now, self.now)
        job.retained_s = job.work
        job.ended_at = self.now
        self._remove(job)
        for node, count in job.placement:
            self.cluster.release(node, count)
        self._fill()
        self._serve(self.tenants[job.tenant])

    def _account(self, job: Job, trained_until: float, released_at: float) -> None:
        """Account for an attempt that trained until `trained_until` and then released its
        accelerators.
        """
        overhead = min(max(trained_until - job.since, 0.0), job.overhead)
        if job.attempts == 1:
            job.startup_s += overhead
        else:
            job.recovery_s += overhead
        job.held_s += max(released_at - job.since, 0.0)

    def _remove(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        tenant.change(self.now, -job.gpus, 0)
        del tenant.running[job.number]
        for node, _ in job.placement:
            del self.cluster.jobs[node][job.number]
        job.version += 1

    # -- starting jobs

    def _fill(self) -> None:
        """Start jobs that fit, first those within quotas, then in the order of submission."""
        cluster = self.cluster
        if self._reserved is not None:
            self._check_reservation(self._reserved)
        if not cluster.total:
            return
        heads = [
            (tenant.used + gpus > tenant.quota, queue[0][0], queue[0][1], tenant, gpus)
            for tenant in self.tenants
            if tenant.waiting
            for gpus, queue in tenant.waiting.items()
            if gpus <= cluster.total
        ]
        heapq.heapify(heads)
        while heads:
            over, *_, tenant, gpus = heapq.heappop(heads)
            # other jobs of the tenant have been started meanwhile
            if over != (not tenant.admits(gpus)):
                heapq.heappush(heads, (True, *tenant.waiting[gpus][0][:2], tenant, gpus))
            elif self._admit(tenant, gpus, reclaim=False) and gpus in tenant.waiting:
                is_over = not tenant.admits(gpus)
                heapq.heappush(heads, (is_over, *tenant.waiting[gpus][0][:2], tenant, gpus))

    def _serve(self, tenant: Tenant) -> None:
        """Let waiting jobs within the tenant's quota reclaim borrowed accelerators if they do not
        fit.
        """
        for gpus in sorted(tenant.waiting, key=lambda gpus: tenant.waiting[gpus][0][:2]):
            while gpus in tenant.waiting and tenant.admits(gpus):
                if not self._admit(tenant, gpus, reclaim=True):
                    break

    def _wake(self, _: None) -> None:
        self._waking = False
        self._serve_all()

    def _serve_all(self) -> None:
        for tenant in self.tenants:
            if tenant.waiting:
                self._serve(tenant)

    def _change_quota(self, change: tuple[Tenant, int]) -> None:
        """Change a quota; what exceeds it counts as borrowed from now on."""
        tenant, gpus = change
        tenant.change(self.now, 0, 0)
        tenant.quota = gpus
        self._next_try.clear()
        self._fill()
        self._serve_all()

    def _admit(self, tenant: Tenant, gpus: int, *, reclaim: bool) -> bool:
        """Start the first waiting job of a size, if the quota allows it and it fits."""
        is_within_quota = tenant.used + gpus <= tenant.quota
        if not is_within_quota and not self.borrow:
            return False
        waiter = tenant.waiting[gpus][0][2]
        if self._reserved is waiter:
            self._release_reservation()
        placement = self.cluster.place(gpus)
        if placement is not None:
            self.cluster.allocate(placement)
            self._start(tenant.dequeue(gpus, self.now), placement, self.now)
            return True
        if not is_within_quota:
            return False
        if reclaim and self._reclaim(tenant, waiter):
            return True
        if self._reserve and self._reserved is None:
            self._reserve_nodes(waiter)
        if not self._waking and any(other.used > other.quota for other in self.tenants):
            self._waking = True
            self._push(self.now + RETRY_S, self._wake, None)
        return False

    # -- reserving nodes for a gang within its quota that does not fit for a long time

    def _reserve_nodes(self, waiter: Job) -> None:
        if self.now - waiter.queued_since < self._reserve:
            return
        count = -(-waiter.gpus // self.cluster.size)
        nodes = self.cluster.emptiest(count)
        if len(nodes) == count:
            self.cluster.reserve(nodes)
            self._reserved = waiter

    def _release_reservation(self) -> None:
        self.cluster.release_reserved()
        self._reserved = None

    def _check_reservation(self, waiter: Job) -> None:
        """Release reserved nodes if the job has started or no longer fits into its quota."""
        tenant = self.tenants[waiter.tenant]
        queue = tenant.waiting.get(waiter.gpus)
        if queue is None or queue[0][2] is not waiter or not tenant.admits(waiter.gpus):
            self._release_reservation()

    def _start(self, job: Job, placement: Placement, at: float) -> None:
        tenant = self.tenants[job.tenant]
        tenant.change(self.now, job.gpus, 0)
        tenant.running[job.number] = job
        for node, _ in placement:
            self.cluster.jobs[node][job.number] = job
        job.placement, job.since = placement, at
        job.queued_s += at - job.queued_since
        job.overhead = job.recover if job.attempts else job.start
        job.attempts += 1
        if job.first_start is None:
            job.first_start = at
        if self.policy.stagger:
            self._starts += 1
            job.phase = job.interval * (1.0 - self._starts * GOLDEN % 1.0)
        self._push(job.ends_at(), self._finish, (job, job.version))

    # -- evicting jobs

    def _reclaim(self, tenant: Tenant, waiter: Job) -> bool:
        reclaimable = self.cluster.total + sum(t.used for t in self.tenants if t.used > t.quota)
        if reclaimable < waiter.gpus:
            return False
        key = (waiter.tenant, waiter.gpus)
        if self.now < self._next_try.get(key, 0.0):
            return False
        context = PreemptionContext(self.now, waiter, self.cluster, self.tenants, self.grace)
        victims = self.policy.victims(context) if context.can_fit() else ()
        if not victims:
            self._next_try[key] = self.now + RETRY_S
            return False
        extra = freed_accelerators(victims)
        placement = self.cluster.place_with(waiter.gpus, extra)
        if placement is None or not context.respects_quota(victims):
            raise UsageError(
                f"the policy {type(self.policy).__name__} evicts jobs "
                f"{', '.join(str(job.number) for job in victims)} for job {waiter.number}, which "
                f"{'breaks a quota' if placement else 'starts nothing'}; "
                "use `select_victims`",
                code="policy-choice-invalid",
                breaks_quota=bool(placement),
            )
        self.preemptions += len(victims)
        self.second_order += len(victims) if waiter.attempts else 0
        before = self.evicted_gpu_s
        ready = max([self._evict(job) for job in victims])
        self.second_order_gpu_s += self.evicted_gpu_s - before if waiter.attempts else 0.0
        self._hand_over(placement, extra, ready)
        self._start(tenant.dequeue(waiter.gpus, self.now), placement, ready)
        return True

    def _evict(self, job: Job) -> float:
        """Evict a job; return the time at which it releases its accelerators."""
        trained, durable, saving = job.progress(self.now)
        released_at = self.now
        job.saving_s += saving
        saves_on_notice = self.policy.notice and job.reports_cost and job.save <= self.grace
        if saves_on_notice and trained - durable > job.save:
            released_at += job.save
            job.retained_s += trained
            job.saving_s += job.save
        else:
            job.retained_s += durable
            job.lost_s += trained - durable
        job.preemptions += 1
        self.evicted_gpu_s += job.gpus * (released_at - job.since)
        self._account(job, self.now, released_at)
        self._remove(job)
        self._push(released_at, self._queue, job)
        return released_at

    def _hand_over(self, placement: Placement, extra: dict[int, int], ready: float) -> None:
        """Allocate what victims release first, then free accelerators; release the rest later."""
        remaining = dict(extra)
        for node, count in placement:
            used = min(remaining.get(node, 0), count)
            if used:
                remaining[node] -= used
            if count > used:
                self.cluster.allocate(((node, count - used),))
        unused = tuple((node, count) for node, count in remaining.items() if count)
        if unused:
            self._push(ready, self._release, unused)

    def _release(self, placement: Placement) -> None:
        for node, count in placement:
            self.cluster.release(node, count)
        self._fill()

    def _up(self, node: int) -> None:
        self.cluster.repair(node)
        self._fill()

    def _down(self, outage: Outage) -> None:
        node = outage.node
        if not self.cluster.up[node]:
            return
        if node in self.cluster.reserved_nodes:
            self._release_reservation()
        # Mark the node first, so that nothing is started on it.
        self.cluster.fail(node)
        affected = list(self.cluster.jobs[node].values())
        for job in affected:
            self._fail(job, outage.notice)
        self._push(outage.end, self._up, node)
        self._fill()

    def _fail(self, job: Job, notice: float) -> None:
        now = self.now
        if job.since > now:  # reserved, while the victims are still saving
            self._remove(job)
            self._push(job.since, self._release, job.placement)
            job.queued_s -= job.since - now
            job.attempts -= 1
            if not job.attempts:
                job.first_start = None
        else:
            trained, durable, saving = job.progress(now)
            saves_on_notice = self.policy.notice and job.reports_cost and job.save <= notice
            if saves_on_notice and trained - durable > job.save:
                job.retained_s += trained - job.save
                saving += job.save
            else:
                job.retained_s += durable
                job.lost_s += trained - durable
            job.saving_s += saving
            job.faults += 1
            self._account(job, now, now)
            self._remove(job)
            for node, count in job.placement:
                self.cluster.release(node, count)
        self._push(now, self._queue, job)


def _stuck(tenants: Sequence[Tenant], cluster: Cluster) -> str:
    sizes = sorted({gpus for tenant in tenants for gpus in tenant.waiting})
    return (
        f"jobs of {', '.join(map(str, sizes))} accelerators never start on {cluster.gpus} in nodes "
        f"of {cluster.size}; give a larger cluster"
    )
