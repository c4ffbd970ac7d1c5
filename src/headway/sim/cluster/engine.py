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

RETRY_S = 30.0  # seconds until a waiter for whom nobody could be evicted is looked at again
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie evenly between 0 and 1


class Engine:
    """A cluster, its tenants and a policy; `run` takes jobs through it to the last one."""

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
        self.second_order = 0  # caused by a job that had been interrupted itself
        self.cut = 0.0  # accelerator-seconds of attempts that were evicted
        self.second_cut = 0.0  # and of those that are second-order
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()
        self._starts = 0
        self._left = 0
        self._waking = False
        self._not_before: dict[tuple[int, int], float] = {}  # by tenant and size
        self._reserve = float(getattr(policy, "reserve", 0.0))  # policies of others may have none
        self._reserved: Job | None = None  # whom nodes are held back for

    def run(
        self,
        jobs: Sequence[Job],
        outages: Sequence[Outage] = (),
        quotas: Sequence[tuple[float, Tenant, int]] = (),
    ) -> None:
        """Take all jobs, sorted by their submission, to their end; quotas may change meanwhile."""
        for outage in outages:
            self._push(outage.start, self._down, outage)
        for at, tenant, gpus in quotas:
            self._push(at, self._requota, (tenant, gpus))
        self._left = len(jobs)
        arriving = iter(jobs)
        job = next(arriving, None)
        events = self._events
        while self._left:
            if job is not None and (not events or job.submit <= events[0][0]):
                self.now = job.submit
                self._arrive(job)
                job = next(arriving, None)
            elif events:
                self.now, _, happen, what = heapq.heappop(events)
                happen(what)
            else:
                raise UsageError(_stuck(self.tenants, self.cluster), code="job-never-starts")
        for tenant in self.tenants:
            tenant.change(self.now, 0, 0)

    def _push(self, at: float, happen: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(self._events, (at, next(self._order), happen, what))

    # Jobs come and go.

    def _arrive(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        job.in_quota = tenant.used + tenant.wanted + job.gpus <= tenant.quota
        self._queue(job)

    def _queue(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        job.queued_since = self.now
        tenant.enqueue(job, self.now)
        if tenant.waiting[job.gpus][0][2] is job:  # else one of its size waits before it
            self._admit(tenant, job.gpus, reclaim=True)

    def _finish(self, attempt: tuple[Job, int]) -> None:
        job, version = attempt
        if job.version != version:  # it was interrupted before
            return
        self._left -= 1
        left = job.work - job.kept
        job.saving += self.now - job.since - job.overhead - left
        self._account(job, self.now, self.now)
        job.kept = job.work
        job.until = self.now
        self._remove(job)
        for node, count in job.places:
            self.cluster.give(node, count)
        self._fill()
        self._serve(self.tenants[job.tenant])

    def _account(self, job: Job, stopped: float, left: float) -> None:
        """The attempt trained until `stopped`, and held its accelerators until it `left`."""
        spent = min(max(stopped - job.since, 0.0), job.overhead)
        if job.attempts == 1:
            job.started += spent
        else:
            job.recovered += spent
        job.held += max(left - job.since, 0.0)

    def _remove(self, job: Job) -> None:
        tenant = self.tenants[job.tenant]
        tenant.change(self.now, -job.gpus, 0)
        del tenant.running[job.number]
        for node, _ in job.places:
            del self.cluster.jobs[node][job.number]
        job.version += 1

    # Who starts.

    def _fill(self) -> None:
        """Start what fits: within quotas first, then by submission."""
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
            if over != (not tenant.admits(gpus)):  # others of it were started meanwhile
                heapq.heappush(heads, (True, *tenant.waiting[gpus][0][:2], tenant, gpus))
            elif self._admit(tenant, gpus, reclaim=False) and gpus in tenant.waiting:
                again = not tenant.admits(gpus)
                heapq.heappush(heads, (again, *tenant.waiting[gpus][0][:2], tenant, gpus))

    def _serve(self, tenant: Tenant) -> None:
        """What waits within the tenant's quota, and finds no room, takes back what is borrowed."""
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

    def _requota(self, change: tuple[Tenant, int]) -> None:
        """Who has less now borrows what it uses beyond that, and others may take it back."""
        tenant, gpus = change
        tenant.change(self.now, 0, 0)
        tenant.quota = gpus
        self._not_before.clear()
        self._fill()
        self._serve_all()

    def _admit(self, tenant: Tenant, gpus: int, *, reclaim: bool) -> bool:
        """Start the first waiting job of a size, if it may and can."""
        within = tenant.used + gpus <= tenant.quota
        if not within and not self.borrow:
            return False
        waiter = tenant.waiting[gpus][0][2]
        if self._reserved is waiter:
            self._release_reservation()
        places = self.cluster.place(gpus)
        if places is not None:
            self.cluster.take(places)
            self._start(tenant.dequeue(gpus, self.now), places, self.now)
            return True
        if not within:
            return False
        if reclaim and self._reclaim(tenant, waiter):
            return True
        if self._reserve and self._reserved is None:
            self._hold_back(waiter)
        if not self._waking and any(other.used > other.quota for other in self.tenants):
            self._waking = True
            self._push(self.now + RETRY_S, self._wake, None)
        return False

    # Whom nodes are held back for: a gang within its quota that is passed again and again.

    def _hold_back(self, waiter: Job) -> None:
        if self.now - waiter.queued_since < self._reserve:
            return
        wanted = -(-waiter.gpus // self.cluster.size)
        nodes = self.cluster.emptiest(wanted)
        if len(nodes) == wanted:
            self.cluster.hold(nodes)
            self._reserved = waiter

    def _release_reservation(self) -> None:
        self.cluster.open()
        self._reserved = None

    def _check_reservation(self, waiter: Job) -> None:
        """Others of its tenant may have taken the quota meanwhile, or it has started."""
        tenant = self.tenants[waiter.tenant]
        queue = tenant.waiting.get(waiter.gpus)
        if queue is None or queue[0][2] is not waiter or not tenant.admits(waiter.gpus):
            self._release_reservation()

    def _start(self, job: Job, places: Placement, at: float) -> None:
        tenant = self.tenants[job.tenant]
        tenant.change(self.now, job.gpus, 0)
        tenant.running[job.number] = job
        for node, _ in places:
            self.cluster.jobs[node][job.number] = job
        job.places, job.since = places, at
        job.waited += at - job.queued_since
        job.overhead = job.recover if job.attempts else job.start
        job.attempts += 1
        if job.first_start is None:
            job.first_start = at
        if self.policy.stagger:
            self._starts += 1
            job.phase = job.interval * (1.0 - self._starts * GOLDEN % 1.0)
        self._push(job.ends_at(), self._finish, (job, job.version))

    # Who goes.

    def _reclaim(self, tenant: Tenant, waiter: Job) -> bool:
        able = self.cluster.total + sum(t.used for t in self.tenants if t.used > t.quota)
        if able < waiter.gpus:
            return False
        kind = (waiter.tenant, waiter.gpus)
        if self.now < self._not_before.get(kind, 0.0):
            return False
        scene = PreemptionContext(self.now, waiter, self.cluster, self.tenants, self.grace)
        victims = self.policy.victims(scene) if scene.can_fit() else ()
        if not victims:
            self._not_before[kind] = self.now + RETRY_S
            return False
        extra = freed_accelerators(victims)
        places = self.cluster.place_with(waiter.gpus, extra)
        if places is None or not scene.respects_quota(victims):
            raise UsageError(
                f"the policy {type(self.policy).__name__} evicts jobs "
                f"{', '.join(str(job.number) for job in victims)} for job {waiter.number}, which "
                f"{'breaks a quota' if places else 'starts nothing'}; choose by `cover`",
                code="policy-choice-invalid",
                breaks_quota=bool(places),
            )
        self.preemptions += len(victims)
        self.second_order += len(victims) if waiter.attempts else 0
        before = self.cut
        ready = max([self._evict(job) for job in victims])
        self.second_cut += self.cut - before if waiter.attempts else 0.0
        self._hand_over(places, extra, ready)
        self._start(tenant.dequeue(waiter.gpus, self.now), places, ready)
        return True

    def _evict(self, job: Job) -> float:
        """Take a job off its accelerators; when it has left them."""
        trained, durable, saving = job.progress(self.now)
        left = self.now
        job.saving += saving
        asked = self.policy.notice and job.listens and job.save <= self.grace
        if asked and trained - durable > job.save:
            left += job.save
            job.kept += trained
            job.saving += job.save
        else:
            job.kept += durable
            job.lost += trained - durable
        job.preemptions += 1
        self.cut += job.gpus * (left - job.since)
        self._account(job, self.now, left)
        self._remove(job)
        self._push(left, self._queue, job)
        return left

    def _hand_over(self, places: Placement, extra: dict[int, int], ready: float) -> None:
        """The waiter gets what the victims leave first, then what was free; the rest later."""
        rest = dict(extra)
        for node, count in places:
            given = min(rest.get(node, 0), count)
            if given:
                rest[node] -= given
            if count > given:
                self.cluster.take(((node, count - given),))
        over = tuple((node, count) for node, count in rest.items() if count)
        if over:
            self._push(ready, self._release, over)

    def _release(self, places: Placement) -> None:
        for node, count in places:
            self.cluster.give(node, count)
        self._fill()

    def _up(self, node: int) -> None:
        self.cluster.repair(node)
        self._fill()

    def _down(self, outage: Outage) -> None:
        node = outage.node
        if not self.cluster.up[node]:
            return
        if node in self.cluster.shut:
            self._release_reservation()
        # Off first, so that nothing is started on it.
        self.cluster.fail(node)
        hit = list(self.cluster.jobs[node].values())
        for job in hit:
            self._fail(job, outage.notice)
        self._push(outage.end, self._up, node)
        self._fill()

    def _fail(self, job: Job, notice: float) -> None:
        now = self.now
        if job.since > now:  # promised, and victims are leaving it still
            self._remove(job)
            self._push(job.since, self._release, job.places)
            job.waited -= job.since - now
            job.attempts -= 1
            if not job.attempts:
                job.first_start = None
        else:
            trained, durable, saving = job.progress(now)
            told = self.policy.notice and job.listens and job.save <= notice
            if told and trained - durable > job.save:
                job.kept += trained - job.save
                saving += job.save
            else:
                job.kept += durable
                job.lost += trained - durable
            job.saving += saving
            job.faults += 1
            self._account(job, now, now)
            self._remove(job)
            for node, count in job.places:
                self.cluster.give(node, count)
        self._push(now, self._queue, job)


def _stuck(tenants: Sequence[Tenant], cluster: Cluster) -> str:
    sizes = sorted({gpus for tenant in tenants for gpus in tenant.waiting})
    return (
        f"jobs of {', '.join(map(str, sizes))} accelerators never start on {cluster.gpus} in nodes "
        f"of {cluster.size}; give a larger cluster"
    )
