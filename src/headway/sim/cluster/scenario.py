"""A simulated cluster, its quotas and the timings of its jobs, and one simulation of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.run import load
from headway.schedule import quotas
from headway.schedule.cost import from_ledger
from headway.schedule.model import Cluster, Job, Tenant
from headway.schedule.preemption import Policy
from headway.schedule.quotas import QuotaChange
from headway.sim.cluster.engine import Engine
from headway.sim.outages import Outage
from headway.sim.traces import Trace
from headway.units import NS


@dataclass(frozen=True, slots=True)
class JobTimings:
    """Times of a job to start, to recover and to save, in seconds."""

    start: float = 0.0  # durations of traces usually include it
    recover: float = 300.0
    save: float = 15.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster and the timings of its jobs, the same for every policy."""

    gpus: int = 600
    per_node: int = 8
    interval: float = 3600.0
    grace: float = 60.0
    habits: tuple[JobTimings, ...] = (JobTimings(),)  # each job draws one
    silent: float = 0.0  # share of jobs that report no cost and do not save on notice
    quota: Mapping[str, int] | None = None  # by tenant; None: in proportion to accelerator-hours
    quota_changes: tuple[QuotaChange, ...] = ()  # by time; only with quotas
    shift: bool = False  # shift the tenants' jobs by whole days for each seed

    def __post_init__(self) -> None:
        for name in ("gpus", "per_node", "interval"):
            if not getattr(self, name) > 0:
                option = name.replace("_", "-")
                raise UsageError(
                    f"--{option} is {getattr(self, name)}; give a number above 0",
                    code="value-out-of-range",
                    option=f"--{option}",
                )
        if not 0 <= self.silent <= 1:
            raise UsageError(
                f"--silent must be a share from 0 to 1, not {self.silent}",
                code="value-out-of-range",
                option="--silent",
            )
        if not self.grace >= 0:
            raise UsageError(
                f"--grace is {self.grace}; give 0 s or more",
                code="value-out-of-range",
                option="--grace",
            )
        for timings in self.habits:
            for name in ("start", "recover", "save"):
                if not 0 <= getattr(timings, name) < math.inf:
                    raise UsageError(
                        f"--{name} is {getattr(timings, name)}; give 0 s or more",
                        code="value-out-of-range",
                        option=f"--{name}",
                    )


def proportional_quotas(hours: Mapping[str, float], gpus: int) -> dict[str, int]:
    """Quotas in proportion to accelerator-hours, by largest remainder; they sum to `gpus`."""
    total = sum(hours.values())
    exact = {name: gpus * part / total for name, part in hours.items()}
    quotas_ = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (quotas_[name] - exact[name], name))
    for name in by_rest[: gpus - sum(quotas_.values())]:
        quotas_[name] += 1
    return quotas_


def timings_from_runs(paths: Iterable[str]) -> tuple[JobTimings, ...]:
    """The timings of each run."""
    return tuple(_timings(path) for path in paths)


def _timings(path: str) -> JobTimings:
    ledger = load(path).ledger
    cost = from_ledger(ledger)
    if cost.save is None or ledger.time_to_start is None:
        event = "saved" if ledger.time_to_start is not None else "trained"
        raise UsageError(
            f"the run {path} never {event}, so its timings are unknown; leave it out",
            code="run-without-times",
        )
    return JobTimings(start=ledger.time_to_start / NS, recover=cost.recover, save=cost.save)


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """The final state of a simulation."""

    jobs: Sequence[Job]
    tenants: Sequence[Tenant]
    preemptions: int
    second_order: int
    evicted_gpu_s: float  # of attempts that were evicted
    second_order_gpu_s: float  # the part evicted for jobs that had been interrupted before
    end: float


def simulate(
    trace: Trace,
    setting: Setting,
    policy: Policy,
    seed: int = 0,
    *,
    outages: Sequence[Outage] = (),
    borrow: bool = True,
) -> SimulationResult:
    """Simulate a trace to its last job; the same arguments give the same result."""
    if setting.shift:
        trace = trace.shifted(seed)
    quota = _quota(trace, setting)
    names = {name: number for number, name in enumerate(quota)}
    tenants = [Tenant(name, gpus) for name, gpus in quota.items()]
    jobs = _jobs(trace, setting, names, seed)
    if not borrow:
        jobs = [job for job in jobs if job.gpus <= _lowest_quota(tenants[job.tenant], setting)]
    cluster = Cluster(setting.gpus, setting.per_node)
    engine = Engine(cluster, tenants, policy, grace=setting.grace, borrow=borrow)
    changes = [
        (change.at, tenants[names[change.tenant]], change.gpus) for change in setting.quota_changes
    ]
    engine.run(jobs, outages, changes)
    return SimulationResult(
        jobs=jobs,
        tenants=tenants,
        preemptions=engine.preemptions,
        second_order=engine.second_order,
        evicted_gpu_s=engine.evicted_gpu_s,
        second_order_gpu_s=engine.second_order_gpu_s,
        end=engine.now,
    )


def _quota(trace: Trace, setting: Setting) -> dict[str, int]:
    hours = trace.tenants()
    if setting.quota is None:
        return proportional_quotas(hours, setting.gpus)
    missing = [name for name in hours if name not in setting.quota]
    if missing:
        raise UsageError(
            f"no quota for {', '.join(missing)}; add a line for each",
            code="quota-missing",
            tenants=missing,
        )
    quota = {name: setting.quota[name] for name in hours}
    quotas.check_quotas(quota, setting.quota_changes, setting.gpus)
    return quota


def _lowest_quota(tenant: Tenant, setting: Setting) -> int:
    """The lowest quota of the tenant at any time."""
    later = [change.gpus for change in setting.quota_changes if change.tenant == tenant.name]
    return min(tenant.quota, *later) if later else tenant.quota


def _jobs(trace: Trace, setting: Setting, names: dict[str, int], seed: int) -> list[Job]:
    """The jobs with random properties, the same for every policy, so that results can be paired by
    seed.
    """
    random_ = random.Random(seed)
    jobs = []
    for number, spec in enumerate(trace.jobs):
        job = Job(number, spec, names[spec.tenant])
        job.interval = setting.interval
        job.phase = setting.interval * (1.0 - random_.random())
        timings = setting.habits[random_.randrange(len(setting.habits))]
        job.start, job.recover, job.save = timings.start, timings.recover, timings.save
        job.reports_cost = random_.random() >= setting.silent
        jobs.append(job)
    largest = max(jobs, key=lambda job: job.gpus, default=None)
    if largest is not None and largest.gpus > setting.gpus:
        raise UsageError(
            f"job {largest.number} needs {largest.gpus} accelerators, but there are "
            f"{setting.gpus}; increase --gpus",
            code="job-too-large",
        )
    return jobs
