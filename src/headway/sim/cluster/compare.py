"""Figures of a simulation, and policies compared on the same seeds with confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headway.errors import UsageError
from headway.schedule import policies
from headway.schedule.model import Job
from headway.schedule.policies import Newest
from headway.schedule.quotas import DAY
from headway.sim import outages
from headway.sim.cluster.scenario import Setting, SimulationResult, simulate
from headway.sim.outages import Outage
from headway.sim.traces import Trace
from headway.stats import percentile, student_t

HOUR_S = 3600.0
PROMPT_S = 60.0  # a job within its quota should start within this time
SIZE_CLASSES = (("1", 1), ("2-8", 8), ("9-64", 64), ("65+", 1 << 30))


def measure(result: SimulationResult, alone: Mapping[int, float] | None = None) -> dict[str, float]:
    """All figures. `alone` is the turnaround of each job without borrowing."""
    figures = {
        **_evictions(result),
        **_hours(result),
        **_quota(result),
        **_spread("queue_min", result.jobs, lambda job: job.queued_s / 60),
        **_spread("jct_h", result.jobs, lambda job: turnaround(job) / HOUR_S),
    }
    return {**figures, **_fairness(result.jobs, alone)} if alone else figures


def turnaround(job: Job) -> float:
    """Seconds from submission to completion."""
    assert job.ended_at is not None
    return job.ended_at - job.submit


def _evictions(result: SimulationResult) -> dict[str, float]:
    attempts = sum(job.attempts for job in result.jobs)
    held_gpu_s = sum(job.gpus * job.held_s for job in result.jobs)
    return {
        "jobs": len(result.jobs),
        "attempts": attempts,
        "preemptions": result.preemptions,
        "preemption_ratio": _share(result.preemptions, attempts),
        "preemption_ratio_by_hours": _share(result.evicted_gpu_s, held_gpu_s),
        "preemptions_per_1000_h": _share(result.preemptions, held_gpu_s / HOUR_S / 1000),
        "second_order": result.second_order,
        "second_order_ratio": _share(result.second_order, result.preemptions),
        "second_order_ratio_by_hours": _share(result.second_order_gpu_s, result.evicted_gpu_s),
        "most_preemptions": max((job.preemptions for job in result.jobs), default=0),
        "faults": sum(job.faults for job in result.jobs),
    }


def _hours(result: SimulationResult) -> dict[str, float]:
    jobs = result.jobs
    lost = sum(job.gpus * job.lost_s for job in jobs) / HOUR_S
    recover = sum(job.gpus * job.recovery_s for job in jobs) / HOUR_S
    saving = sum(job.gpus * job.saving_s for job in jobs) / HOUR_S
    held_h = sum(job.gpus * job.held_s for job in jobs) / HOUR_S
    work = sum(job.gpus * job.work for job in jobs) / HOUR_S
    return {
        "lost_h": lost,
        "recover_h": recover,
        "lost_and_recover_h": lost + recover,
        "lost_min_by_jobs": _mean(job.lost_s / 60 for job in jobs),
        "recover_min_by_jobs": _mean(job.recovery_s / 60 for job in jobs),
        "saving_h": saving,
        "held_h": held_h,
        "borrowed_h": sum(tenant.borrowed for tenant in result.tenants) / HOUR_S,
        "ett_percent": 100 * _share(work, held_h),
        "ett_percent_by_jobs": 100 * _mean(_share(job.work, job.held_s) for job in jobs),
    }


def _quota(result: SimulationResult) -> dict[str, float]:
    within = [job for job in result.jobs if job.in_quota and job.first_start is not None]
    waits = [(job.first_start or 0.0) - job.submit for job in within]
    served = [
        _share(tenant.served, tenant.entitled) for tenant in result.tenants if tenant.entitled > 0
    ]
    entitled = sum(tenant.entitled for tenant in result.tenants)
    return {
        "in_quota_jobs": len(within),
        "in_quota_wait_s": _mean(waits),
        "in_quota_prompt": _mean(float(wait <= PROMPT_S) for wait in waits),
        "quota_satisfaction": _share(sum(t.served for t in result.tenants), entitled),
        "jain_index": jain_index(served),
    }


def jain_index(values: Sequence[float]) -> float:
    """1 if all values are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _spread(name: str, jobs: Sequence[Job], value: Callable[[Job], float]) -> dict[str, float]:
    values = [value(job) for job in jobs]
    weights = [job.gpus * job.work for job in jobs]
    figures = {
        name: _mean(values),
        f"{name}_by_hours": _share(
            sum(value * weight for value, weight in zip(values, weights, strict=True)), sum(weights)
        ),
        **{f"{name}_p{p}": percentile(values, p / 100) for p in (50, 95, 99) if values},
    }
    below = 0
    for label, most in SIZE_CLASSES:
        values_of_class = [
            value for value, job in zip(values, jobs, strict=True) if below < job.gpus <= most
        ]
        if values_of_class:
            figures[f"{name}[{label}]"] = _mean(values_of_class)
            figures[f"{name}_p95[{label}]"] = percentile(values_of_class, 0.95)
        below = most
    return figures


def _fairness(jobs: Sequence[Job], alone: Mapping[int, float]) -> dict[str, float]:
    """Finish-time fairness: turnaround relative to that with only the tenant's own quota."""
    measured = [job for job in jobs if job.number in alone]
    rho = [turnaround(job) / alone[job.number] for job in measured]
    if not rho:
        return {}
    weights = [job.gpus * job.work for job in measured]
    weighted = sum(value * weight for value, weight in zip(rho, weights, strict=True))
    return {
        "rho": _mean(rho),
        "rho_by_hours": _share(weighted, sum(weights)),
        "rho_p95": percentile(rho, 0.95),
        "rho_worse": _mean(float(value > 1.001) for value in rho),
    }


def _mean(values: Iterable[float]) -> float:
    items = list(values)
    return sum(items) / len(items) if items else 0.0


def _share(part: float, total: float) -> float:
    return part / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % confidence interval (None for one seed)."""

    mean: float
    half: float | None


@dataclass(frozen=True)
class Case:
    """A trace, a cluster and its outages: everything except the policy and the seed."""

    trace: Trace
    setting: Setting
    faults: str = ""  # "stepfun" or a path
    spot: str = ""  # "p3", "g4dn" or a path
    spot_nodes: int = 0
    spot_notice: float = 120.0

    def __post_init__(self) -> None:
        if not 0 <= self.spot_nodes <= self.nodes:
            most = f"give a number from 0 to {self.nodes}, the number of nodes"
            raise UsageError(
                f"--spot-nodes is {self.spot_nodes}; {most}",
                code="value-out-of-range",
                option="--spot-nodes",
            )
        if not self.spot_notice >= 0:
            raise UsageError(
                f"--spot-notice is {self.spot_notice}; give 0 s or more",
                code="value-out-of-range",
                option="--spot-notice",
            )

    @property
    def nodes(self) -> int:
        """Number of nodes; the last one may be smaller."""
        return -(-self.setting.gpus // self.setting.per_node)

    def outages(self, seed: int) -> list[Outage]:
        """The outages of a seed, the same for every policy."""
        longest = max(job.work for job in self.trace.jobs)
        horizon = self.trace.days * DAY + 2 * longest
        nodes = self.nodes
        outages_: list[Outage] = []
        if self.faults:
            path = outages.FAULT_FILE if self.faults == "stepfun" else Path(self.faults)
            outages_ += outages.draw_faults(nodes, horizon, seed, path)
        if self.spot:
            path = outages.SPOT_FILES.get(self.spot, Path(self.spot))
            last = range(nodes - self.spot_nodes, nodes)
            outages_ += outages.draw_spot(
                last, horizon, path, notice=self.spot_notice, offset=seed * HOUR_S
            )
        return sorted(outages_, key=lambda outage: (outage.start, outage.node))


@dataclass(frozen=True)
class Comparison:
    """The figures of each policy, by seed."""

    case: Case
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    figures: tuple[tuple[Mapping[str, float], ...], ...]  # by policy, then by seed

    def of(self, policy: int, figure: str) -> Interval:
        """A figure of a policy."""
        return mean_interval([row[figure] for row in self.figures[policy]])

    def change(self, policy: int, figure: str) -> Interval | None:
        """The relative change from the first policy, paired by seed; None if that is zero."""
        pairs = [
            (mine[figure], base[figure])
            for mine, base in zip(self.figures[policy], self.figures[0], strict=True)
        ]
        if any(base == 0 for _, base in pairs):
            return None
        return mean_interval([mine / base - 1 for mine, base in pairs])

    def front(self, *figures: str) -> list[int]:
        """The Pareto front: policies that no other one beats in one figure without losing in
        another.
        """
        points = [
            [self.of(policy, figure).mean for figure in figures]
            for policy in range(len(self.names))
        ]
        return [
            policy
            for policy, mine in enumerate(points)
            if not any(
                other != mine and all(o <= m for o, m in zip(other, mine, strict=True))
                for other in points
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """The output of `headway simulate cluster --json`."""
        names = list(self.figures[0][0])
        return {
            "schema": 1,
            "trace": self.case.trace.name,
            "jobs": len(self.case.trace.jobs),
            "days": self.case.trace.days,
            "setting": asdict(self.case.setting),
            "faults": self.case.faults or None,
            "spot": self.case.spot or None,
            "seeds": list(self.seeds),
            "policies": [
                {
                    "policy": name,
                    "figures": {figure: asdict(self.of(policy, figure)) for figure in names},
                    "change": {
                        figure: asdict(change)
                        for figure in names
                        if policy and (change := self.change(policy, figure)) is not None
                    },
                    "by_seed": [dict(row) for row in self.figures[policy]],
                }
                for policy, name in enumerate(self.names)
            ],
            "pareto": [self.names[p] for p in self.front(*OBJECTIVES)],
        }


OBJECTIVES = ("preemptions", "lost_and_recover_h", "queue_min")


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with its confidence interval."""
    if len(values) < 2:
        return Interval(statistics.fmean(values), None)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(statistics.fmean(values), half)


def compare(case: Case, names: Sequence[str], seeds: Sequence[int], workers: int = 1) -> Comparison:
    """Simulate every policy with every seed; the number of processes does not change the result."""
    for name in names:
        policies.parse_policy(name)
    if workers > 1 and len(seeds) > 1:
        # spawn: forking a process with threads may deadlock
        with ProcessPoolExecutor(min(workers, len(seeds)), get_context("spawn")) as pool:
            rows = list(pool.map(_seed, [(case, tuple(names), seed) for seed in seeds]))
    else:
        rows = [_seed((case, tuple(names), seed)) for seed in seeds]
    figures = tuple(tuple(row[place] for row in rows) for place in range(len(names)))
    return Comparison(case, tuple(names), tuple(seeds), figures)


def _seed(task: tuple[Case, tuple[str, ...], int]) -> list[dict[str, float]]:
    case, names, seed = task
    outages = case.outages(seed)
    without_borrowing = simulate(
        case.trace, case.setting, Newest(), seed, outages=outages, borrow=False
    )
    alone = {job.number: turnaround(job) for job in without_borrowing.jobs}
    figures = []
    for name in names:
        policy = policies.parse_policy(name)
        result = simulate(case.trace, case.setting, policy, seed, outages=outages)
        figures.append(measure(result, alone))
    return figures
