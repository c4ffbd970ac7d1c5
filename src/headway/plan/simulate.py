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
    ci95: float  # of the 95 % confidence interval of the ETT, in points
    p5: float  # ETT that one job in twenty does not reach
    p95: float  # ETT that one job in twenty exceeds
    failures: float  # of a job, on average
    unfinished: int  # trials that made no headway


@dataclass(frozen=True)
class _Trial:
    shares: Shares
    failures: int
    done: bool


def simulate(job: JobSpec, *, trials: int = 2000, seed: int = 1) -> Simulated:
    """Deterministic: the same seed plays the same failures."""
    if trials < 2:
        raise UsageError(
            f"{trials} trials say nothing of how sure they are; give 2 or more",
            code="value-out-of-range",
            field="trials",
        )
    generator = random.Random(seed)
    interval = job.interval_in_use
    results = [_run_trial(job, interval, generator) for _ in range(_affordable_trials(job, trials))]
    mean = Shares(
        **{part: _mean([getattr(trial.shares, part) for trial in results]) for part in PARTS}
    )
    percents = [trial.shares.ett_percent for trial in results]
    return Simulated(
        trials=len(results),
        shares=mean,
        ci95=_ci95(results, mean),
        p5=percentile(percents, 0.05),
        p95=percentile(percents, 0.95),
        failures=_mean([trial.failures for trial in results]),
        unfinished=sum(not trial.done for trial in results),
    )


def is_simulable(job: JobSpec, max_attempts: float = 10 * MAX_ATTEMPTS) -> bool:
    """Whether the fewest trials would not take too long."""
    return _expected_attempts(job) * MIN_TRIALS <= max_attempts


def _affordable_trials(job: JobSpec, trials: int) -> int:
    """Fewer trials where each has many failures."""
    if not is_simulable(job):
        raise UsageError(
            f"a job of {job.length:g} s that fails every {job.job_mtbf:.3g} s cannot be played; "
            "give a longer --mtbf, a shorter --length or fewer --nodes",
            code="too-many-failures",
        )
    return min(trials, max(MIN_TRIALS, int(MAX_ATTEMPTS / _expected_attempts(job))))


def _expected_attempts(job: JobSpec) -> float:
    return 1 + min(expected(job).wall, _give_up_after(job)) / job.job_mtbf


def _give_up_after(job: JobSpec) -> float:
    return GIVE_UP_FACTOR * (job.length + job.startup_s)


def _run_trial(job: JobSpec, interval: float, generator: random.Random) -> _Trial:
    """One job from its first start to its end."""
    rate, limit = 1 / job.job_mtbf, _give_up_after(job)
    seconds = dict.fromkeys(PARTS, 0.0)
    elapsed, failures = 0.0, 0
    pause, phase = job.startup_s, "start"
    while True:
        uptime = generator.expovariate(rate) if rate else math.inf
        remaining = job.length - seconds["effective"]
        saves = max(math.ceil(remaining / interval) - 1, 0)
        end = pause + remaining + saves * job.block
        if uptime >= end:
            seconds[phase] += pause
            seconds["saves"] += saves * job.block
            seconds["effective"] = job.length
            return _Trial(Shares(**seconds), failures, done=True)
        failures += 1
        elapsed += uptime
        seconds[phase] += min(uptime, pause)
        running = max(uptime - pause, 0.0)
        kept_time, trained_time = _kept_and_trained(job, interval, running, saves)
        seconds["effective"] += kept_time
        seconds["lost"] += trained_time - kept_time
        seconds["saves"] += running - trained_time
        pause, phase = job.recovery_s, "recover"
        if elapsed > limit:
            return _Trial(Shares(**seconds), failures, done=False)


def _kept_and_trained(
    job: JobSpec, interval: float, running: float, saves: int
) -> tuple[float, float]:
    """Of a life that ended: the training that is kept, and all that was trained."""
    period = interval + job.block
    started = min(int(running / period), saves)
    durable = min(int(max(running - job.durable, 0.0) / period), saves)
    return durable * interval, started * interval + min(running - started * period, interval)


def _ci95(trials: Sequence[_Trial], mean: Shares) -> float:
    """Of a ratio of two means, by its residuals."""
    ratio = mean.effective / mean.wall
    residuals = [trial.shares.effective - ratio * trial.shares.wall for trial in trials]
    variance = sum(residual * residual for residual in residuals) / (len(residuals) - 1)
    return 100.0 * student_t(len(residuals) - 1) * math.sqrt(variance / len(residuals)) / mean.wall


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
