"""Several policies on the same seeds: means, confidence intervals, and change by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headway.errors import UsageError
from headway.schedule import policies
from headway.schedule.outages import Outage, bamboo, stepfun
from headway.schedule.policies.newest import Newest
from headway.schedule.simulate.measure import HOUR_S, measure, turnaround
from headway.schedule.simulate.setting import Setting
from headway.schedule.simulate.simulate import simulate
from headway.schedule.traces.trace import DAY, Trace
from headway.stats import student_t


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half of its 95 % confidence interval; one seed has none."""

    mean: float
    half: float | None


@dataclass(frozen=True)
class Case:
    """A trace, a setting and what goes wrong in it: all but the policy and the seed."""

    trace: Trace
    setting: Setting
    faults: str = ""  # "stepfun", or a path
    spot: str = ""  # "p3", "g4dn", or a path
    spot_nodes: int = 0
    spot_notice: float = 120.0

    def __post_init__(self) -> None:
        if not 0 <= self.spot_nodes <= self.nodes:
            most = f"give a number from 0 to {self.nodes}, which are all nodes"
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
        """Of the cluster; the last one may be smaller."""
        return -(-self.setting.gpus // self.setting.per_node)

    def outages(self, seed: int) -> list[Outage]:
        """The same for every policy."""
        longest = max(job.work for job in self.trace.jobs)
        horizon = self.trace.days * DAY + 2 * longest
        nodes = self.nodes
        found: list[Outage] = []
        if self.faults:
            path = stepfun.FAULT_FILE if self.faults == "stepfun" else Path(self.faults)
            found += stepfun.draw_faults(nodes, horizon, seed, path)
        if self.spot:
            path = bamboo.SPOT_FILES.get(self.spot, Path(self.spot))
            last = range(nodes - self.spot_nodes, nodes)
            found += bamboo.draw_spot(
                last, horizon, path, notice=self.spot_notice, offset=seed * HOUR_S
            )
        return sorted(found, key=lambda outage: (outage.start, outage.node))


@dataclass(frozen=True)
class Comparison:
    """For each policy, in the order given: each figure by seed."""

    case: Case
    names: tuple[str, ...]
    seeds: tuple[int, ...]
    figures: tuple[tuple[Mapping[str, float], ...], ...]  # by policy, then by seed

    def of(self, policy: int, figure: str) -> Interval:
        """A figure of a policy."""
        return mean_interval([row[figure] for row in self.figures[policy]])

    def change(self, policy: int, figure: str) -> Interval | None:
        """By how much it differs from the first policy, as a share, seed by seed."""
        pairs = [
            (mine[figure], base[figure])
            for mine, base in zip(self.figures[policy], self.figures[0], strict=True)
        ]
        if any(base == 0 for _, base in pairs):
            return None
        return mean_interval([mine / base - 1 for mine, base in pairs])

    def front(self, *figures: str) -> list[int]:
        """The policies than which none is better in one of these and no worse in the others."""
        points = [
            [self.of(place, figure).mean for figure in figures] for place in range(len(self.names))
        ]
        return [
            place
            for place, mine in enumerate(points)
            if not any(
                other != mine and all(o <= m for o, m in zip(other, mine, strict=True))
                for other in points
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """The contract of `headway simulate cluster --json`."""
        shown = list(self.figures[0][0])
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
                    "figures": {one: asdict(self.of(place, one)) for one in shown},
                    "change": {
                        one: asdict(change)
                        for one in shown
                        if place and (change := self.change(place, one)) is not None
                    },
                    "by_seed": [dict(row) for row in self.figures[place]],
                }
                for place, name in enumerate(self.names)
            ],
            "pareto": [self.names[p] for p in self.front(*OBJECTIVES)],
        }


OBJECTIVES = ("preemptions", "lost_and_recover_h", "queue_min")


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values, and how far off it may be."""
    if len(values) < 2:
        return Interval(statistics.fmean(values), None)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(statistics.fmean(values), half)


def compare(case: Case, names: Sequence[str], seeds: Sequence[int], workers: int = 1) -> Comparison:
    """Play every policy with every seed; several processes change nothing but the time."""
    for name in names:
        policies.parse_policy(name)
    if workers > 1 and len(seeds) > 1:
        # Started afresh: a fork of a process with threads may hang.
        with ProcessPoolExecutor(min(workers, len(seeds)), get_context("spawn")) as pool:
            rows = list(pool.map(_seed, [(case, tuple(names), seed) for seed in seeds]))
    else:
        rows = [_seed((case, tuple(names), seed)) for seed in seeds]
    figures = tuple(tuple(row[place] for row in rows) for place in range(len(names)))
    return Comparison(case, tuple(names), tuple(seeds), figures)


def _seed(task: tuple[Case, tuple[str, ...], int]) -> list[dict[str, float]]:
    case, names, seed = task
    outages = case.outages(seed)
    apart = simulate(case.trace, case.setting, Newest(), seed, outages=outages, borrow=False)
    alone = {job.number: turnaround(job) for job in apart.jobs}
    found = []
    for name in names:
        policy = policies.parse_policy(name)
        played = simulate(case.trace, case.setting, policy, seed, outages=outages)
        found.append(measure(played, alone))
    return found
