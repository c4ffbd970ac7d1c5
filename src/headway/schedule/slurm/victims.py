"""Choose the victims of a waiting Slurm job: the preemption policies applied to a real cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import with_code
from headway.schedule import model as simulated
from headway.schedule.model import Cluster, Placement, Tenant
from headway.schedule.preemption import Policy, PreemptionContext, freed_accelerators
from headway.schedule.slurm.cluster import ClusterState, SlurmJob, SlurmNode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of a run, from its ledger; seconds."""

    unsaved: float
    saved_at: float | None  # when this attempt's newest durable save was taken, since the epoch
    save: float | None  # time until a save is durable; None: the run does not react to notices
    recover: float
    preemptions: int
    outcome: str  # of the newest attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimChoice:
    """The victims and the placement of the waiting job, or the reason for no eviction."""

    victims: tuple[SlurmJob, ...] = ()
    placement: tuple[tuple[str, int], ...] = ()
    reason: str = ""


class SlurmCandidate(simulated.Job):
    """A running Slurm job in the form that policies expect."""

    __slots__ = ("_status",)

    def __init__(
        self, job: SlurmJob, tenant: int, status: RunStatus | None, index: Mapping[str, int]
    ) -> None:
        spec = simulated.JobSpec(job.submit, math.inf, job.gpus, job.account)
        super().__init__(job.number, spec, tenant)
        self._status = status
        self.since = job.start
        self.placement = tuple((index[node], count) for node, count in job.placement)
        self.reports_cost = status is not None
        self.preemptions = job.restarts if status is None else status.preemptions
        if status is not None:
            self.recover = status.recover
            self.save = math.inf if status.save is None else status.save

    def progress(self, now: float) -> tuple[float, float, float]:
        """Of this attempt: time since its start, time of its newest durable save, and 0."""
        ran, status = max(now - self.since, 0.0), self._status
        if status is None or status.saved_at is None:
            return ran, 0.0, 0.0
        return ran, max(ran - status.unsaved, 0.0), 0.0

    def unsaved(self, now: float) -> float:
        """From the run's status; without one, since the start."""
        return max(now - self.since, 0.0) if self._status is None else self._status.unsaved


class NodePool(Cluster):
    """Nodes of any size, for a job that needs the same number of accelerators on each node."""

    def __init__(self, free: Sequence[int], each: int) -> None:
        self.free, self.size = list(free), each
        self.gpus = self.total = sum(free)
        self.up = [True] * len(free)
        self.jobs = [{} for _ in free]

    @property
    def free_node_count(self) -> int:
        """Number of nodes with room for the job's part."""
        return sum(free >= self.size for free in self.free)

    def place(self, gpus: int) -> Placement | None:
        """The placement of the job at present."""
        return self.place_with(gpus, {})

    def place_with(self, gpus: int, extra: Mapping[int, int]) -> Placement | None:
        """The placement with extra free accelerators, preferring nodes that need none."""
        usable = [n for n, free in enumerate(self.free) if free + extra.get(n, 0) >= self.size]
        wanted = gpus // self.size
        if len(usable) < wanted:
            return None
        usable.sort(key=lambda node: (self.free[node] < self.size, node))
        return tuple((node, self.size) for node in usable[:wanted])


def candidates(waiter: SlurmJob, state: ClusterState) -> list[SlurmJob]:
    """Jobs that the waiting job's QOS may evict, on its nodes, and that can be requeued."""
    node_names = {node.name for node in usable_nodes(waiter, state)}
    preempts = state.qos[waiter.qos].preempts if waiter.qos in state.qos else ()
    return [
        job
        for job in state.running()
        if job.qos in preempts
        and job.requeues
        and job.placement
        and all(name in node_names for name, _ in job.placement)
    ]


def usable_nodes(waiter: SlurmJob, state: ClusterState) -> list[SlurmNode]:
    """Nodes that are up in a partition of the waiting job."""
    return [node for node in state.nodes if set(node.partitions) & set(waiter.partitions)]


def choose_victims(
    waiter: SlurmJob,
    state: ClusterState,
    statuses: Mapping[int, RunStatus | None],
    policy: Policy,
    *,
    now: float,
    grace: float,
    quotas: Mapping[str, int] | None = None,
    reserved: Mapping[str, int] | None = None,
) -> VictimChoice:
    """Choose victims.

    `statuses` has the candidates by job number; `reserved` are accelerators by node that other
    waiting jobs will use.
    """
    nodes = usable_nodes(waiter, state)
    index = {node.name: number for number, node in enumerate(nodes)}
    free = _free_accelerators(nodes, state, reserved or {})
    per_node = math.ceil(waiter.gpus / waiter.nodes)
    pool = NodePool(free, per_node)
    jobs = {job.number: job for job in state.running() if job.number in statuses}
    if pool.place(per_node * waiter.nodes) is not None:
        text = "resources are free: Slurm will start it, or it waits for something else"
        return VictimChoice(reason=with_code(text, code="room-is-free"))
    tenants = _tenants(state, jobs, statuses, index, quotas or {})
    spec = simulated.JobSpec(waiter.submit, math.inf, per_node * waiter.nodes, waiter.account)
    waiting_job = simulated.Job(waiter.number, spec, -1)
    context = PreemptionContext(now, waiting_job, pool, tenants, grace)
    chosen = policy.victims(context)
    node_counts = pool.place_with(waiting_job.gpus, freed_accelerators(chosen))
    victims = tuple(jobs[job.number] for job in chosen)
    if not victims or node_counts is None or not context.respects_quota(chosen):
        text = "no set of jobs that it may evict frees enough resources"
        return VictimChoice(reason=with_code(text, code="no-victims"))
    placement = tuple((nodes[node].name, count) for node, count in node_counts)
    short_node = _node_short_of_cpus(waiter, victims, state, placement)
    if short_node:
        text = f"too few CPUs would be free on {short_node}"
        return VictimChoice(reason=with_code(text, code="too-few-cpus"))
    return VictimChoice(victims=victims, placement=placement)


def _free_accelerators(
    nodes: Sequence[SlurmNode], state: ClusterState, reserved: Mapping[str, int]
) -> list[int]:
    """Free accelerators by node, including those of jobs that are completing."""
    free = {node.name: node.gpus - reserved.get(node.name, 0) for node in nodes}
    for job in state.jobs:
        for name, count in job.placement if job.state == "COMPLETING" else ():
            if name in free:
                free[name] += count
    return [max(count, 0) for count in free.values()]


def _tenants(
    state: ClusterState,
    jobs: Mapping[int, SlurmJob],
    statuses: Mapping[int, RunStatus | None],
    index: Mapping[str, int],
    quotas: Mapping[str, int],
) -> list[Tenant]:
    """Accounts with their usage, quota, and candidate jobs."""
    names = sorted({job.account for job in state.running()})
    tenants = [Tenant(name, quotas.get(name, 0)) for name in names]
    for job in state.running():
        number = names.index(job.account)
        tenants[number].used += job.gpus
        if job.number in jobs:
            candidate = SlurmCandidate(job, number, statuses[job.number], index)
            tenants[number].running[job.number] = candidate
    return tenants


def _node_short_of_cpus(
    waiter: SlurmJob,
    victims: Sequence[SlurmJob],
    state: ClusterState,
    placement: Sequence[tuple[str, int]],
) -> str:
    """The first node that would have too few CPUs, or ""."""
    cpus_per_node = math.ceil(waiter.cpus / waiter.nodes)
    free = {node.name: node.cpus for node in state.nodes}
    for job in victims:
        for name, _ in job.placement:
            free[name] += job.cpus // len(job.placement)
    return next((name for name, _ in placement if free[name] < cpus_per_node), "")
