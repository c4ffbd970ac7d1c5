"""Running jobs that fall below what their slice does: which, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.fleet.regressions.live import Watch, patience
from headway.fleet.regressions.series import Floats, Series
from headway.ledger.leaves import EFFECTIVE, group

HOURS_A_WEEK = 168.0
LOWEST = 0.02  # of a slice's accelerator-hours lie below what is expected of a running job
LEAST_WALL = 2 * 3600.0  # of a finished job that tells what to expect
LEAST_JOBS = 20


@dataclass(frozen=True)
class Alarm:
    """A running job that does worse than it should; hours are counted since it trained first."""

    run_id: str
    slice: tuple[str, ...]
    hour: int
    expected: float  # effective share of an hour, 0 to 1
    lately: float  # over the last hours before the alarm


def expected(series: Series) -> float | None:
    """The share of the loop that all but the worst finished jobs of a slice train in."""
    loop = np.array([group(leaf) in ("train", "waste", "unknown") for leaf in series.buckets])
    whole = series.seconds[:, loop].sum(axis=1)
    told = ~series.running & (whole >= LEAST_WALL)
    if told.sum() < LEAST_JOBS:
        return None
    shares = series.seconds[told, series.buckets.index(EFFECTIVE)] / whole[told]
    return _quantile(shares, series.hours[told], LOWEST)


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, level)])


def watch(
    shares: Mapping[str, Sequence[float]],
    slices: Mapping[str, tuple[str, ...]],
    expectations: Mapping[tuple[str, ...], float | None],
    alarms_a_week: float = 1.0,
) -> list[Alarm]:
    """The alarms of jobs that run, given each one's effective share hour by hour."""
    waiting = patience(max(len(shares), 1), HOURS_A_WEEK, alarms_a_week)
    found = []
    for run, line in sorted(shares.items()):
        least = expectations.get(slices[run])
        if least is None or least <= 0:
            continue
        one = Watch(least, waiting)
        for hour, share in enumerate(line):
            if one.saw(share):
                lately = float(np.mean(line[max(0, hour - 5) : hour + 1]))
                found.append(Alarm(run, slices[run], hour + 1, least, lately))
                break
    return found
