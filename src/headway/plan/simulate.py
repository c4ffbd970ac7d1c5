"""Monte Carlo simulation of a planned job, failure by failure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.plan.analytic import expected
from headway.plan.job import PARTS, JobSpec, Shares
from headway.stats import percentile, student_t

MAX_ATTEMPTS = 200_000  # of all trials together; some microseconds each
MIN_TRIALS = 20  # trials, whatever they take
GIVE_UP_FACTOR = 10.0  # a job is given up when it took so many times its length


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The mean over all trials, how sure it is, and how much single jobs differ."""

    trials: int
    shares: Shares
    half: float  # of the 95 % confidence interval of the ETT, in points
    worst: float  # ETT that one job in twenty does not reach
    best: float  # ETT that one job in twenty exceeds
    failures: float  # of a job, on average
    given_up: int  # trials that made no headway


@dataclass(frozen=True)
class _Trial:
    shares: Shares
    failures: int
    done: bool


def simulate(case: JobSpec, *, trials: int = 2000, seed: int = 1) -> Simulated:
    """Deterministic: the same seed plays the same failures."""
    if trials < 2:
        raise UsageError(
            f"{trials} trials say nothing of how sure they are; give 2 or more",
            code="value-out-of-range",
            field="trials",
        )
    generator = random.Random(seed)
    every = case.every
    found = [_run_trial(case, every, generator) for _ in range(_affordable_trials(case, trials))]
    mean = Shares(**{part: _mean([getattr(t.shares, part) for t in found]) for part in PARTS})
    percents = [trial.shares.ett_percent for trial in found]
    return Simulated(
        trials=len(found),
        shares=mean,
        half=_ci95(found, mean),
        worst=percentile(percents, 0.05),
        best=percentile(percents, 0.95),
        failures=_mean([trial.failures for trial in found]),
        given_up=sum(not trial.done for trial in found),
    )


def is_simulable(case: JobSpec, most: float = 10 * MAX_ATTEMPTS) -> bool:
    """Whether the fewest trials would not take too long."""
    return _expected_attempts(case) * MIN_TRIALS <= most


def _affordable_trials(case: JobSpec, trials: int) -> int:
    """Fewer trials where each has many failures."""
    if not is_simulable(case):
        raise UsageError(
            f"a job of {case.length:g} s that fails every {case.between:.3g} s cannot be played; "
            "give a longer --mtbf, a shorter --length or fewer --nodes",
            code="too-many-failures",
        )
    return min(trials, max(MIN_TRIALS, int(MAX_ATTEMPTS / _expected_attempts(case))))


def _expected_attempts(case: JobSpec) -> float:
    return 1 + min(expected(case).wall, _give_up_after(case)) / case.between


def _give_up_after(case: JobSpec) -> float:
    return GIVE_UP_FACTOR * (case.length + case.first)


def _run_trial(case: JobSpec, every: float, generator: random.Random) -> _Trial:
    """One job from its first start to its end."""
    rate, limit = 1 / case.between, _give_up_after(case)
    spent = dict.fromkeys(PARTS, 0.0)
    wall, failures = 0.0, 0
    before, phase = case.first, "start"
    while True:
        life = generator.expovariate(rate) if rate else math.inf
        left = case.length - spent["effective"]
        saves = max(math.ceil(left / every) - 1, 0)
        end = before + left + saves * case.block
        if life >= end:
            spent[phase] += before
            spent["saves"] += saves * case.block
            spent["effective"] = case.length
            return _Trial(Shares(**spent), failures, done=True)
        failures += 1
        wall += life
        spent[phase] += min(life, before)
        running = max(life - before, 0.0)
        kept, trained = _kept_and_trained(case, every, running, saves)
        spent["effective"] += kept
        spent["lost"] += trained - kept
        spent["saves"] += running - trained
        before, phase = case.again, "recover"
        if wall > limit:
            return _Trial(Shares(**spent), failures, done=False)


def _kept_and_trained(
    case: JobSpec, every: float, running: float, saves: int
) -> tuple[float, float]:
    """Of a life that ended: the training that is kept, and all that was trained."""
    period = every + case.block
    begun = min(int(running / period), saves)
    durable = min(int(max(running - case.durable, 0.0) / period), saves)
    return durable * every, begun * every + min(running - begun * period, every)


def _ci95(found: Sequence[_Trial], mean: Shares) -> float:
    """Of a ratio of two means, by its residuals."""
    ratio = mean.effective / mean.wall
    rest = [trial.shares.effective - ratio * trial.shares.wall for trial in found]
    variance = sum(one * one for one in rest) / (len(rest) - 1)
    return 100.0 * student_t(len(rest) - 1) * math.sqrt(variance / len(rest)) / mean.wall


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
