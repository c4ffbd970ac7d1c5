"""Scenario of a simulated fleet: slices, rollouts, planted regressions and lemon nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.errors import UsageError
from headway.sim.fleet import defaults
from headway.sim.fleet.defaults import distributions

DAY = 86400.0
EPOCH = 1_767_571_200.0  # Monday, 5 January 2026
# Buckets of planted regressions: a share of each job's loop, or seconds of each start.
LOOP_BUCKETS = ("waste.data_stall", "waste.checkpoint_block", "waste.recompile", "waste.blocked")
START_BUCKETS = ("start.pt2_compile", "start.hardware_setup", "start.get_first_batch_data")
FIELDS = ("image", "torch", "host_type", "config", "code")
POINTS = 2.0


@dataclass(frozen=True)
class PlantedRegression:
    """Jobs of the slice that begin at or after `at` lose `points` of their time to `bucket`."""

    slice: int
    at: float
    bucket: str
    field: str
    value: str
    points: float = POINTS


@dataclass(frozen=True)
class Rollout:
    """A field of a slice has this value from `at` on."""

    at: float
    value: str


@dataclass(frozen=True)
class FleetScenario:
    """Parameters that are fixed before the first job is drawn."""

    seed: int
    jobs: int
    days: int
    scale: int
    shares: NDArray[np.float64]  # of the jobs, by slice
    stage_factors: NDArray[np.float64]  # slices x stages
    waste_factors: NDArray[np.float64]  # slices x kinds of waste
    rollouts: dict[str, list[list[Rollout]]]  # by field and slice, sorted by time
    planted: tuple[PlantedRegression, ...]
    hosts: dict[str, tuple[int, int]]  # by type: first host, and the one after the last
    lemons: frozenset[int]  # hosts
    spot: frozenset[int]  # slices on spot machines

    @property
    def begin(self) -> float:
        """Start of the first day, in seconds since the epoch."""
        return EPOCH

    @property
    def end(self) -> float:
        """End of the last day."""
        return EPOCH + self.days * DAY


def slice_name(number: int) -> tuple[str, str]:
    """The team and the model of a slice."""
    team, model = divmod(number, defaults.MODELS)
    return f"team-{team:02d}", f"model-{team:02d}-{'abcdefghij'[model]}"


def host_name(number: int) -> str:
    return f"node-{number:05d}"


def make_scenario(
    seed: int, jobs: int, days: int, scale: int = 1, regressions: int = 8, lemons: int = 5
) -> FleetScenario:
    """Create a scenario; the same arguments give the same scenario."""
    slices = defaults.TEAMS * defaults.MODELS
    _check(seed=seed, jobs=jobs, days=days, scale=scale, regressions=regressions, lemons=lemons)
    random = np.random.default_rng([seed, 0xF1EE7])
    sizes = random.lognormal(0, defaults.UNEVEN, slices)
    spot = frozenset(map(int, random.choice(slices, defaults.SPOT_SLICES, replace=False)))
    rollouts = _rollouts(random, slices, days, spot)
    planted = _plant_regressions(random, slices, days, regressions, rollouts, spot)
    hosts = _hosts(jobs, days, scale)
    count = max(high for _, high in hosts.values())
    lemon_hosts = random.choice(count, min(lemons, count), replace=False)
    return FleetScenario(
        seed=seed,
        jobs=jobs,
        days=days,
        scale=scale,
        shares=sizes / sizes.sum(),
        stage_factors=random.lognormal(0, defaults.SLICE_SIGMA, (slices, len(defaults.STAGES))),
        waste_factors=random.lognormal(0, defaults.SLICE_SIGMA, (slices, len(defaults.WASTE))),
        rollouts=rollouts,
        planted=planted,
        hosts=hosts,
        lemons=frozenset(map(int, lemon_hosts)),
        spot=spot,
    )


def _check(**parameters: int) -> None:
    minimums = {"jobs": 1, "days": 1, "scale": 1}
    for name, value in parameters.items():
        if value < minimums.get(name, 0):
            raise UsageError(
                f"--{name} is {value}, but it must be {minimums.get(name, 0)} or more",
                code="value-out-of-range",
                option=f"--{name}",
            )
    slices = defaults.TEAMS * defaults.MODELS
    if parameters["regressions"] > slices:
        raise UsageError(
            f"--regressions is {parameters['regressions']}, but there are only {slices} slices",
            code="value-out-of-range",
            option="--regressions",
        )


def _rollouts(
    random: np.random.Generator, slices: int, days: int, spot: frozenset[int]
) -> dict[str, list[list[Rollout]]]:
    """Rollouts of new values at random times, without any effect."""
    rollouts: dict[str, list[list[Rollout]]] = {}
    for name, apart in defaults.ROLLOUTS.items():
        rollouts[name] = []
        for number in range(slices):
            moments = [0.0, *np.sort(random.uniform(0, days, random.poisson(days / apart)))]
            rollouts[name].append(
                [Rollout(EPOCH + at * DAY, _value(name, number, i)) for i, at in enumerate(moments)]
            )
    kinds = random.choice(defaults.HOST_TYPES, slices)
    rollouts["host_type"] = [
        [Rollout(EPOCH, defaults.SPOT_TYPE if number in spot else str(kinds[number]))]
        for number in range(slices)
    ]
    return rollouts


def _value(name: str, number: int, i: int) -> str:
    if name == "torch":
        return f"2.{11 + min(i, 4)}.0"
    return f"{name}-{number:02d}-{i:02d}"


def _plant_regressions(
    random: np.random.Generator,
    slices: int,
    days: int,
    count: int,
    rollouts: dict[str, list[list[Rollout]]],
    spot: frozenset[int],
) -> tuple[PlantedRegression, ...]:
    """Plant regressions in different slices, each with a new value of one field."""
    planted = []
    for number in map(int, random.choice(slices, count, replace=False)):
        at = EPOCH + float(random.uniform(0.25, 0.85)) * days * DAY
        # With frequent reclaims, slower starts would cost far more than planned.
        bucket = str(
            random.choice(LOOP_BUCKETS if number in spot else LOOP_BUCKETS + START_BUCKETS)
        )
        name = str(random.choice(FIELDS))
        if name == "host_type" and number in spot:
            name = "image"
        history = rollouts[name][number]
        current = [rollout.value for rollout in history if rollout.at <= at][-1]
        value = _new_value(name, number, current, random)
        history[:] = [rollout for rollout in history if rollout.at <= at]
        history.append(Rollout(at, value))
        planted.append(PlantedRegression(number, at, bucket, name, value))
    return tuple(sorted(planted, key=lambda rollout: rollout.at))


def _new_value(name: str, number: int, now: str, random: np.random.Generator) -> str:
    if name == "host_type":
        return str(random.choice([kind for kind in defaults.HOST_TYPES if kind != now]))
    return "2.16.0" if name == "torch" else f"{name}-{number:02d}-new"


def _hosts(jobs: int, days: int, scale: int) -> dict[str, tuple[int, int]]:
    """Enough hosts for the jobs, in pools of equal size by type."""
    trace = distributions()
    accelerator_s = trace.accelerator_s * scale * jobs
    kinds = (*defaults.HOST_TYPES, defaults.SPOT_TYPE)
    needed = accelerator_s / (days * DAY * defaults.GPUS * defaults.BUSY) / len(kinds)
    widest = int(trace.sizes[-1]) * scale // defaults.GPUS
    pool = max(int(np.ceil(needed)), widest, 4)
    return {kind: (i * pool, (i + 1) * pool) for i, kind in enumerate(kinds)}
