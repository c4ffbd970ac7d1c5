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

SIMULATE_EVERY = 10  # point of the curve is played
POINT_TRIALS = 100
MAX_WASTED = 80.0  # percent wasted; a job that makes no headway takes too long to play


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """An interval of the curve that was played too: what it lost of the loop, in percent."""

    interval: float
    wasted: float
    half: float  # of its 95 % confidence interval


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One row: a job, and what is expected of it by both ways."""

    case: JobSpec  # with the interval in force
    bound: str  # what set it: given, run, law, durable or length
    at: Point
    closed: Shares
    played: Simulated
    laws: tuple[Formula, ...]
    curve: tuple[Point, ...]
    dots: tuple[SimulatedPoint, ...]
    range: tuple[float, float] | None  # ETT at the ends of the failure rate's interval
    is_bound: bool = False  # the failure rate is an upper bound: ETT and interval are lower ones


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All rows, and where the values came from."""

    rows: tuple[PlanRow, ...]
    seed: int
    measured: Measured | None = None

    def to_dict(self) -> dict[str, Any]:
        """For `headway plan --json`."""
        return {
            "schema": 1,
            "seed": self.seed,
            "measured": None if self.measured is None else asdict(self.measured),
            "rows": [_row_to_dict(row) for row in self.rows],
        }


def plan(
    case: JobSpec,
    nodes: Sequence[int],
    intervals: Sequence[float | None],
    *,
    trials: int,
    seed: int,
    measured: Measured | None = None,
) -> Plan:
    """Every number of nodes at every interval; None is the best one."""
    cases = [replace(case, nodes=n, interval=every) for n in nodes for every in intervals]
    rows = tuple(_plan_row(one, trials, seed, measured) for one in cases)
    return Plan(rows=rows, seed=seed, measured=measured)


def _plan_row(case: JobSpec, trials: int, seed: int, measured: Measured | None) -> PlanRow:
    told = _recommended(case, measured)
    settled = replace(case, interval=told or case.every)
    line = curve(settled)
    return PlanRow(
        case=settled,
        bound="run" if told else _interval_source(case),
        at=point(settled, settled.every),
        closed=expected(settled),
        played=simulate(settled, trials=trials, seed=seed),
        laws=formulas(settled),
        curve=line,
        dots=tuple(_simulated_points(settled, line, seed)),
        range=_ett_range(settled, measured),
        is_bound=measured is not None and measured.is_bound and case.mtbf == measured.mtbf_s,
    )


def _recommended(case: JobSpec, measured: Measured | None) -> float | None:
    """What the Checkpointer of the run recommends, if the job is the same and that is not ours."""
    if case.interval is not None or measured is None or measured.interval_s is None:
        return None
    same = {"nodes": measured.nodes, **measured.values}
    if any(getattr(case, name) != same.get(name) for name in ("nodes", "mtbf", "block", "durable")):
        return None
    ours = math.isclose(measured.interval_s, case.best().interval, rel_tol=1e-6)
    return None if ours or measured.interval_s > case.length else measured.interval_s


def _simulated_points(case: JobSpec, line: Sequence[Point], seed: int) -> Iterator[SimulatedPoint]:
    for at in line[::SIMULATE_EVERY]:
        other = replace(case, interval=at.interval)
        if (
            at.interval > case.length
            or at.exact > MAX_WASTED
            or not is_simulable(other, MAX_ATTEMPTS)
        ):
            continue
        found = simulate(other, trials=POINT_TRIALS, seed=seed)
        loop = found.shares.wall - found.shares.start
        half = found.half * found.shares.wall / loop
        yield SimulatedPoint(at.interval, 100 - 100 * found.shares.effective / loop, half)


def _interval_source(case: JobSpec) -> str:
    if case.interval is not None:
        return "given"
    return "length" if case.best().interval > case.length else case.best().bound


def _ett_range(case: JobSpec, measured: Measured | None) -> tuple[float, float] | None:
    """The ETT if the failures are as many, or as few, as they may be."""
    if measured is None or measured.failures_low is None or measured.failures_high is None:
        return None
    if case.mtbf != measured.mtbf_s:  # another rate was given
        return None
    most = DAY / measured.failures_high
    fewest = DAY / measured.failures_low if measured.failures_low else math.inf
    return (
        expected(replace(case, mtbf=most)).ett_percent,
        expected(replace(case, mtbf=fewest)).ett_percent,
    )


def _row_to_dict(row: PlanRow) -> dict[str, Any]:
    case, played = row.case, row.played
    finite = not math.isinf(case.between)
    return {
        "nodes": case.nodes,
        "failures_a_day": case.a_day,
        "failures_are_bound": row.is_bound,
        "mtbf_s": case.between if finite else None,
        "interval_s": case.every,
        "interval_by": row.bound,
        "wasted_percent": row.at.wasted,
        "closed": _shares_to_dict(row.closed),
        "played": {
            **_shares_to_dict(played.shares),
            "trials": played.trials,
            "ett_half_percent": played.half,
            "ett_p5_percent": played.worst,
            "ett_p95_percent": played.best,
            "failures": played.failures,
            "given_up": played.given_up,
        },
        "ett_range_percent": row.range,
        "laws": [{"law": law.name, **point_to_dict(law.at)} for law in row.laws],
        "curve": [point_to_dict(one) for one in row.curve],
        "curve_played": [
            {"interval_s": dot.interval, "wasted_percent": dot.wasted, "half_percent": dot.half}
            for dot in row.dots
        ],
    }


def point_to_dict(one: Point) -> dict[str, float]:
    """A point of the curve, as JSON and CSV say it."""
    return {
        "interval_s": one.interval,
        "saves_percent": one.saves,
        "lost_percent": one.lost,
        "recover_percent": one.recover,
        "wasted_percent": one.wasted,
        "exact_percent": one.exact,
    }


def _shares_to_dict(shares: Shares) -> dict[str, float]:
    found = {"ett_percent": shares.ett_percent, "wall_s": shares.wall}
    return {**found, **{f"{part}_percent": shares.percent(part) for part in PARTS[1:]}}
