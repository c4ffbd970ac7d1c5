"""What a simulation is judged by: each figure for jobs alike, and by accelerator-hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headway.schedule.simulate.job import Job
from headway.schedule.simulate.simulate import SimulationResult
from headway.stats import percentile

HOUR_S = 3600.0
PROMPT_S = 60.0  # seconds in which a job within its quota should start
SIZE_CLASSES = (("1", 1), ("2-8", 8), ("9-64", 64), ("65+", 1 << 30))


def measure(played: SimulationResult, alone: Mapping[int, float] | None = None) -> dict[str, float]:
    """All figures; `alone` says when each job ended, after its submission, with no borrowing."""
    found = {
        **_evictions(played),
        **_hours(played),
        **_quota(played),
        **_spread("queue_min", played.jobs, lambda job: job.waited / 60),
        **_spread("jct_h", played.jobs, lambda job: turnaround(job) / HOUR_S),
    }
    return {**found, **_fairness(played.jobs, alone)} if alone else found


def turnaround(job: Job) -> float:
    """From its submission to its end."""
    assert job.until is not None
    return job.until - job.submit


def _evictions(played: SimulationResult) -> dict[str, float]:
    attempts = sum(job.attempts for job in played.jobs)
    held = sum(job.gpus * job.held for job in played.jobs)
    return {
        "jobs": len(played.jobs),
        "attempts": attempts,
        "preemptions": played.preemptions,
        "preemption_ratio": _share(played.preemptions, attempts),
        "preemption_ratio_by_hours": _share(played.cut, held),
        "preemptions_per_1000_h": _share(played.preemptions, held / HOUR_S / 1000),
        "second_order": played.second_order,
        "second_order_ratio": _share(played.second_order, played.preemptions),
        "second_order_ratio_by_hours": _share(played.second_cut, played.cut),
        "most_preemptions": max((job.preemptions for job in played.jobs), default=0),
        "faults": sum(job.faults for job in played.jobs),
    }


def _hours(played: SimulationResult) -> dict[str, float]:
    jobs = played.jobs
    lost = sum(job.gpus * job.lost for job in jobs) / HOUR_S
    recover = sum(job.gpus * job.recovered for job in jobs) / HOUR_S
    saving = sum(job.gpus * job.saving for job in jobs) / HOUR_S
    held = sum(job.gpus * job.held for job in jobs) / HOUR_S
    work = sum(job.gpus * job.work for job in jobs) / HOUR_S
    return {
        "lost_h": lost,
        "recover_h": recover,
        "lost_and_recover_h": lost + recover,
        "lost_min_by_jobs": _mean(job.lost / 60 for job in jobs),
        "recover_min_by_jobs": _mean(job.recovered / 60 for job in jobs),
        "saving_h": saving,
        "held_h": held,
        "borrowed_h": sum(tenant.borrowed for tenant in played.tenants) / HOUR_S,
        "ett_percent": 100 * _share(work, held),
        "ett_percent_by_jobs": 100 * _mean(_share(job.work, job.held) for job in jobs),
    }


def _quota(played: SimulationResult) -> dict[str, float]:
    within = [job for job in played.jobs if job.in_quota and job.first_start is not None]
    waits = [(job.first_start or 0.0) - job.submit for job in within]
    served = [
        _share(tenant.met, tenant.entitled) for tenant in played.tenants if tenant.entitled > 0
    ]
    entitled = sum(tenant.entitled for tenant in played.tenants)
    return {
        "in_quota_jobs": len(within),
        "in_quota_wait_s": _mean(waits),
        "in_quota_prompt": _mean(float(wait <= PROMPT_S) for wait in waits),
        "quota_satisfaction": _share(sum(t.met for t in played.tenants), entitled),
        "jain_index": jain_index(served),
    }


def jain_index(values: Sequence[float]) -> float:
    """1 where all are served alike; 1/n where one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _spread(name: str, jobs: Sequence[Job], value: Callable[[Job], float]) -> dict[str, float]:
    values = [value(job) for job in jobs]
    weights = [job.gpus * job.work for job in jobs]
    found = {
        name: _mean(values),
        f"{name}_by_hours": _share(
            sum(value * weight for value, weight in zip(values, weights, strict=True)), sum(weights)
        ),
        **{f"{name}_p{p}": percentile(values, p / 100) for p in (50, 95, 99) if values},
    }
    below = 0
    for label, most in SIZE_CLASSES:
        part = [value for value, job in zip(values, jobs, strict=True) if below < job.gpus <= most]
        if part:
            found[f"{name}[{label}]"] = _mean(part)
            found[f"{name}_p95[{label}]"] = percentile(part, 0.95)
        below = most
    return found


def _fairness(jobs: Sequence[Job], alone: Mapping[int, float]) -> dict[str, float]:
    """Finish-time fairness: the time a job took over what its tenant's own quota would take."""
    known = [job for job in jobs if job.number in alone]
    rho = [turnaround(job) / alone[job.number] for job in known]
    if not rho:
        return {}
    weights = [job.gpus * job.work for job in known]
    weighted = sum(value * weight for value, weight in zip(rho, weights, strict=True))
    return {
        "rho": _mean(rho),
        "rho_by_hours": _share(weighted, sum(weights)),
        "rho_p95": percentile(rho, 0.95),
        "rho_worse": _mean(float(value > 1.001) for value in rho),
    }


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept) if kept else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
