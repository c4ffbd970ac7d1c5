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

MAX_ATTEMPTS = 200_000  # attempts in all trials; each takes some microseconds
MIN_TRIALS = 20  # independent of their cost
GIVE_UP_FACTOR = 10.0  # a trial is aborted after this multiple of the job's length


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Mean over all trials, its uncertainty, and the spread of single jobs."""

    trials: int
    shares: Shares
    ci95: float  # half-width of the 95 % confidence interval of the ETT, in points
    p5: float  # 5th percentile of the ETT
    p95: float  # 95th percentile of the ETT
    failures: float  # mean number per job
    unfinished: int  # trials that were aborted


@dataclass(frozen=True)
class _Trial:
    shares: Shares
    failures: int
    done: bool


def simulate(job: JobSpec, *, trials: int = 2000, seed: int = 1) -> Simulated:
    """Simulate the job. The result is deterministic for a given seed."""
    if trials < 2:
        raise UsageError(
            f"a confidence interval needs 2 or more trials, not {trials}",
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
    """Whether `MIN_TRIALS` trials need at most `max_attempts` attempts."""
    return _expected_attempts(job) * MIN_TRIALS <= max_attempts


def _affordable_trials(job: JobSpec, trials: int) -> int:
    """Reduce the number of trials if each has many failures."""
    if not is_simulable(job):
        raise UsageError(
            f"a job of {job.length:g} s that fails every {job.job_mtbf:.3g} s cannot be simulated; "
            "give a longer --mtbf, a shorter --length or fewer --nodes",
            code="too-many-failures",
        )
    return min(trials, max(MIN_TRIALS, int(MAX_ATTEMPTS / _expected_attempts(job))))


def _expected_attempts(job: JobSpec) -> float:
    return 1 + min(expected(job).wall, _give_up_after(job)) / job.job_mtbf


def _give_up_after(job: JobSpec) -> float:
    return GIVE_UP_FACTOR * (job.length + job.startup_s)


def _run_trial(job: JobSpec, interval: float, generator: random.Random) -> _Trial:
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
    """Training that was saved, and all training, of an attempt that ended after `running` s."""
    period = interval + job.block
    started = min(int(running / period), saves)
    durable = min(int(max(running - job.durable, 0.0) / period), saves)
    return durable * interval, started * interval + min(running - started * period, interval)


def _ci95(trials: Sequence[_Trial], mean: Shares) -> float:
    """Half-width of the interval for a ratio of two means, from its residuals."""
    ratio = mean.effective / mean.wall
    residuals = [trial.shares.effective - ratio * trial.shares.wall for trial in trials]
    variance = sum(residual * residual for residual in residuals) / (len(residuals) - 1)
    return 100.0 * student_t(len(residuals) - 1) * math.sqrt(variance / len(residuals)) / mean.wall


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
