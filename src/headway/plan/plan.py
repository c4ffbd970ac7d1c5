"""A plan: one job for several node counts and checkpoint intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.plan.analytic import Formula, Point, curve, expected, formulas, point
from headway.plan.job import DAY, PARTS, JobSpec, Shares
from headway.plan.measured import Measured
from headway.plan.simulate import MAX_ATTEMPTS, Simulated, is_simulable, simulate

SIMULATE_EVERY = 10  # simulate every 10th point of the curve
POINT_TRIALS = 100
MAX_WASTED = 80.0  # percent; simulating jobs that waste more takes too long


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """A simulated interval of the curve: the share of the loop's time it wasted, in percent."""

    interval: float
    wasted: float
    ci95: float  # half-width of the 95 % confidence interval


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A job with its expected results, analytic and simulated."""

    job: JobSpec  # with the interval in use
    interval_source: str  # of the interval in use: given, run, law, durable or length
    point_in_use: Point
    analytic: Shares
    simulated: Simulated
    formulas: tuple[Formula, ...]
    curve: tuple[Point, ...]
    simulated_points: tuple[SimulatedPoint, ...]
    ett_range: tuple[float, float] | None  # ETT at both ends of the failure rate's interval
    is_bound: bool = False  # failure rate is an upper bound, so ETT and interval are lower bounds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All rows, and the measurement they are based on."""

    rows: tuple[PlanRow, ...]
    seed: int
    measured: Measured | None = None

    def to_dict(self) -> dict[str, Any]:
        """The output of `headway plan --json`."""
        return {
            "schema": 1,
            "seed": self.seed,
            "measured": None if self.measured is None else asdict(self.measured),
            "rows": [_row_to_dict(row) for row in self.rows],
        }


def plan(
    job: JobSpec,
    nodes: Sequence[int],
    intervals: Sequence[float | None],
    *,
    trials: int,
    seed: int,
    measured: Measured | None = None,
) -> Plan:
    """Plan each number of nodes with each interval; None is the best interval."""
    jobs = [replace(job, nodes=n, interval=interval) for n in nodes for interval in intervals]
    rows = tuple(_plan_row(job, trials, seed, measured) for job in jobs)
    return Plan(rows=rows, seed=seed, measured=measured)


def _plan_row(job: JobSpec, trials: int, seed: int, measured: Measured | None) -> PlanRow:
    recommended = _recommended(job, measured)
    job_in_use = replace(job, interval=recommended or job.interval_in_use)
    curve_points = curve(job_in_use)
    return PlanRow(
        job=job_in_use,
        interval_source="run" if recommended else _interval_source(job),
        point_in_use=point(job_in_use, job_in_use.interval_in_use),
        analytic=expected(job_in_use),
        simulated=simulate(job_in_use, trials=trials, seed=seed),
        formulas=formulas(job_in_use),
        curve=curve_points,
        simulated_points=tuple(_simulated_points(job_in_use, curve_points, seed)),
        ett_range=_ett_range(job_in_use, measured),
        is_bound=measured is not None and measured.is_bound and job.mtbf == measured.mtbf_s,
    )


def _recommended(job: JobSpec, measured: Measured | None) -> float | None:
    """The interval that the run's Checkpointer recommends, if the job is the same.

    None if it equals the best interval computed here.
    """
    if job.interval is not None or measured is None or measured.interval_s is None:
        return None
    same = {"nodes": measured.nodes, **measured.values}
    if any(getattr(job, name) != same.get(name) for name in ("nodes", "mtbf", "block", "durable")):
        return None
    is_best = math.isclose(measured.interval_s, job.best().interval, rel_tol=1e-6)
    return None if is_best or measured.interval_s > job.length else measured.interval_s


def _simulated_points(job: JobSpec, points: Sequence[Point], seed: int) -> Iterator[SimulatedPoint]:
    for curve_point in points[::SIMULATE_EVERY]:
        job_at = replace(job, interval=curve_point.interval)
        if (
            curve_point.interval > job.length
            or curve_point.exact > MAX_WASTED
            or not is_simulable(job_at, MAX_ATTEMPTS)
        ):
            continue
        result = simulate(job_at, trials=POINT_TRIALS, seed=seed)
        loop = result.shares.wall - result.shares.start
        ci95 = result.ci95 * result.shares.wall / loop
        yield SimulatedPoint(curve_point.interval, 100 - 100 * result.shares.effective / loop, ci95)


def _interval_source(job: JobSpec) -> str:
    if job.interval is not None:
        return "given"
    return "length" if job.best().interval > job.length else job.best().bound


def _ett_range(job: JobSpec, measured: Measured | None) -> tuple[float, float] | None:
    """ETT at both ends of the credible interval of the failure rate."""
    if measured is None or measured.failures_low is None or measured.failures_high is None:
        return None
    if job.mtbf != measured.mtbf_s:  # the user gave another rate
        return None
    most = DAY / measured.failures_high
    fewest = DAY / measured.failures_low if measured.failures_low else math.inf
    return (
        expected(replace(job, mtbf=most)).ett_percent,
        expected(replace(job, mtbf=fewest)).ett_percent,
    )


def _row_to_dict(row: PlanRow) -> dict[str, Any]:
    job, simulated = row.job, row.simulated
    finite = not math.isinf(job.job_mtbf)
    return {
        "nodes": job.nodes,
        "failures_a_day": job.failures_per_day,
        "failures_are_bound": row.is_bound,
        "mtbf_s": job.job_mtbf if finite else None,
        "interval_s": job.interval_in_use,
        "interval_by": row.interval_source,
        "wasted_percent": row.point_in_use.wasted,
        "closed": _shares_to_dict(row.analytic),
        "played": {
            **_shares_to_dict(simulated.shares),
            "trials": simulated.trials,
            "ett_half_percent": simulated.ci95,
            "ett_p5_percent": simulated.p5,
            "ett_p95_percent": simulated.p95,
            "failures": simulated.failures,
            "given_up": simulated.unfinished,
        },
        "ett_range_percent": row.ett_range,
        "laws": [{"law": formula.name, **point_to_dict(formula.point)} for formula in row.formulas],
        "curve": [point_to_dict(item) for item in row.curve],
        "curve_played": [
            {
                "interval_s": sample.interval,
                "wasted_percent": sample.wasted,
                "half_percent": sample.ci95,
            }
            for sample in row.simulated_points
        ],
    }


def point_to_dict(point: Point) -> dict[str, float]:
    """A point of the curve with the keys used in JSON and CSV."""
    return {
        "interval_s": point.interval,
        "saves_percent": point.saves,
        "lost_percent": point.lost,
        "recover_percent": point.recover,
        "wasted_percent": point.wasted,
        "exact_percent": point.exact,
    }


def _shares_to_dict(shares: Shares) -> dict[str, float]:
    totals = {"ett_percent": shares.ett_percent, "wall_s": shares.wall}
    return {**totals, **{f"{part}_percent": shares.percent(part) for part in PARTS[1:]}}
