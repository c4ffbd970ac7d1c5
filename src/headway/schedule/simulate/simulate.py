"""One trace, one setting, one policy, one seed: what became of every job."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.schedule.outages import Outage
from headway.schedule.policies.policy import Policy
from headway.schedule.simulate import quotas
from headway.schedule.simulate.cluster import Cluster
from headway.schedule.simulate.engine import Engine
from headway.schedule.simulate.job import Job
from headway.schedule.simulate.setting import Setting, proportional_quotas
from headway.schedule.simulate.tenant import Tenant
from headway.schedule.traces.trace import Trace


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """A trace that was played to its last job."""

    jobs: Sequence[Job]
    tenants: Sequence[Tenant]
    preemptions: int
    second_order: int
    cut: float  # accelerator-seconds of attempts that were evicted
    second_cut: float  # and of those that a job evicted which had been interrupted itself
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
    """Simulate it; the same arguments give the same outcome."""
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
    changes = [(one.at, tenants[names[one.tenant]], one.gpus) for one in setting.quota_changes]
    engine.run(jobs, outages, changes)
    return SimulationResult(
        jobs=jobs,
        tenants=tenants,
        preemptions=engine.preemptions,
        second_order=engine.second_order,
        cut=engine.cut,
        second_cut=engine.second_cut,
        end=engine.now,
    )


def _quota(trace: Trace, setting: Setting) -> dict[str, int]:
    hours = trace.tenants()
    if setting.quota is None:
        return proportional_quotas(hours, setting.gpus)
    missing = [name for name in hours if name not in setting.quota]
    if missing:
        raise UsageError(
            f"no quota is given for {', '.join(missing)}; add a line for each",
            code="quota-missing",
            tenants=missing,
        )
    given = {name: setting.quota[name] for name in hours}
    quotas.check_quotas(given, setting.quota_changes, setting.gpus)
    return given


def _lowest_quota(tenant: Tenant, setting: Setting) -> int:
    """What the tenant has at any time."""
    later = [one.gpus for one in setting.quota_changes if one.tenant == tenant.name]
    return min(tenant.quota, *later) if later else tenant.quota


def _jobs(trace: Trace, setting: Setting, names: dict[str, int], seed: int) -> list[Job]:
    """Every job draws the same for every policy, so that those can be compared by seed."""
    draw = random.Random(seed)
    jobs = []
    for number, spec in enumerate(trace.jobs):
        job = Job(number, spec, names[spec.tenant])
        job.interval = setting.interval
        job.phase = setting.interval * (1.0 - draw.random())
        habit = setting.habits[draw.randrange(len(setting.habits))]
        job.start, job.recover, job.save = habit.start, habit.recover, habit.save
        job.listens = draw.random() >= setting.silent
        jobs.append(job)
    largest = max(jobs, key=lambda job: job.gpus, default=None)
    if largest is not None and largest.gpus > setting.gpus:
        raise UsageError(
            f"job {largest.number} needs {largest.gpus} accelerators and there are {setting.gpus}; "
            "give more by --gpus",
            code="job-too-large",
        )
    return jobs
