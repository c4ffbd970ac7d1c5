"""Running jobs that fall below the level of their slice or of their own first hours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from headway.fleet.regressions.cohorts import Floats, Series
from headway.fleet.regressions.e_detector import (
    BASELINE_SIZE,
    EDetector,
    average_run_length,
    baseline,
)
from headway.ledger.buckets import EFFECTIVE, HANG, LOST, group

HOURS_A_WEEK = 168.0
EXPECTED_QUANTILE = (
    0.02  # of a slice's accelerator-hours lie below what is expected of a running job
)
MIN_WALL_S = 2 * 3600.0  # of a finished job that tells what to expect
MIN_JOBS = 20
MIN_DROP = 0.01  # of the share that a job trains, below its own first hours
MIN_SLOWDOWN = 0.05  # of the pace of its steps
RECENT = 3  # observations: what is told of it
DETECTORS = 3  # of each job: beside its slice, beside its own share, beside its own pace


@dataclass(frozen=True)
class Alarm:
    """A running job that does worse than it should; `hour` counts those in which it trained."""

    run_id: str
    slice: tuple[str, ...]
    beside: str  # "slice", "share" or "pace": its own of its first hours
    hour: int
    expected: float  # 0 to 1: of an hour, or of the pace that its steps had
    lately: float  # over the last hours before the alarm

    @property
    def words(self) -> str:
        """What is wrong."""
        if self.beside == "pace":
            return f"makes steps at {self.lately:.0%} of the pace of its first hours"
        told = "its slice" if self.beside == "slice" else "its first hours"
        return f"trains {self.lately:.1%} of its time, {self.expected:.1%} is the least by {told}"


def in_loop(leaf: str) -> bool:
    """Whether time counts for a running job: interruptions and starts are told elsewhere."""
    return group(leaf) in ("train", "waste", "unknown") or leaf in (LOST, HANG)


def trains(leaf: str) -> bool:
    """Whether steps are made in it; that they are rolled back later is the interruption's."""
    return leaf in (EFFECTIVE, LOST)


class SavedStep(NamedTuple):
    """One save of a running job: of which attempt, when, and at which step."""

    attempt: int
    accelerators: int
    at: datetime
    step: int


def seconds_per_step(saves: Sequence[SavedStep]) -> list[float]:
    """Seconds per step from save to save, an hour apart at least, on the machines of today."""
    found = []
    last: SavedStep | None = None
    for save in (one for one in saves if one.accelerators == saves[-1].accelerators):
        if last is None or save.attempt != last.attempt or save.step < last.step:
            last = save
            continue
        apart = (save.at - last.at).total_seconds()
        if apart >= 3600 and save.step > last.step:
            found.append(apart / (save.step - last.step))
            last = save
    return found


def expected_share(series: Series) -> float | None:
    """The share of the loop that all but the worst finished jobs of a slice train in."""
    loop = np.array([in_loop(leaf) for leaf in series.buckets])
    trained = np.array([trains(leaf) for leaf in series.buckets])
    whole = series.seconds[:, loop].sum(axis=1)
    told = ~series.running & (whole >= MIN_WALL_S)
    if told.sum() < MIN_JOBS:
        return None
    shares = series.seconds[told][:, trained].sum(axis=1) / whole[told]
    return _quantile(shares, series.hours[told], EXPECTED_QUANTILE)


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, level)])


def watch_running(
    shares: Mapping[str, Sequence[float]],
    paces: Mapping[str, Sequence[float]],
    slices: Mapping[str, tuple[str, ...]],
    expectations: Mapping[tuple[str, ...], float | None],
    alarms_a_week: float = 1.0,
) -> list[Alarm]:
    """The first alarm of each job that runs, given its hours: share trained, seconds per step."""
    waiting = average_run_length(max(DETECTORS * len(slices), 1), HOURS_A_WEEK, alarms_a_week)
    found = []
    for run, name in sorted(slices.items()):
        line = shares.get(run, ())
        alarms = [
            Alarm(run, name, beside, *told)
            for beside, told in _alarms(line, paces.get(run, ()), expectations.get(name), waiting)
        ]
        found += sorted(alarms, key=lambda one: one.hour)[:1]
    return found


def _alarms(
    shares: Sequence[float], paces: Sequence[float], least: float | None, waiting: float
) -> Iterator[tuple[str, tuple[int, float, float]]]:
    """Which of the watches alarm: the hour, what is expected, and what was lately."""
    if least is not None and least > 0:
        yield from _first_alarm("slice", shares, 0, EDetector(least, waiting))
    if len(shares) > BASELINE_SIZE:
        yield from _first_alarm(
            "share", shares, BASELINE_SIZE, _own_detector(shares[:BASELINE_SIZE], MIN_DROP, waiting)
        )
    if len(paces) > BASELINE_SIZE:
        usual = median(paces[:BASELINE_SIZE])
        speeds = [min(1.0, usual / pace) for pace in paces]
        yield from _first_alarm(
            "pace",
            speeds,
            BASELINE_SIZE,
            _own_detector(speeds[:BASELINE_SIZE], MIN_SLOWDOWN, waiting),
        )


def _own_detector(first: Sequence[float], least_fall: float, waiting: float) -> EDetector | None:
    least, best = baseline(first, least_fall)
    return EDetector(least, waiting, best) if least > 0 else None


def _first_alarm(
    beside: str, line: Sequence[float], begin: int, one: EDetector | None
) -> Iterator[tuple[str, tuple[int, float, float]]]:
    for hour in range(begin, len(line)) if one else ():
        if one and one.saw(line[hour]):
            lately = fmean(line[max(begin, hour + 1 - RECENT) : hour + 1])
            yield beside, (hour + 1, one.expected, lately)
            return
