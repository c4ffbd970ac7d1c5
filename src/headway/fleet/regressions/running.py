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
        reference = "its slice" if self.beside == "slice" else "its first hours"
        return (
            f"trains {self.lately:.1%} of its time, {self.expected:.1%} is the least by {reference}"
        )


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
    paces = []
    last: SavedStep | None = None
    for save in (save for save in saves if save.accelerators == saves[-1].accelerators):
        if last is None or save.attempt != last.attempt or save.step < last.step:
            last = save
            continue
        elapsed = (save.at - last.at).total_seconds()
        if elapsed >= 3600 and save.step > last.step:
            paces.append(elapsed / (save.step - last.step))
            last = save
    return paces


def expected_share(series: Series) -> float | None:
    """The share of the loop that all but the worst finished jobs of a slice train in."""
    loop = np.array([in_loop(leaf) for leaf in series.buckets])
    trained = np.array([trains(leaf) for leaf in series.buckets])
    loop_s = series.seconds[:, loop].sum(axis=1)
    is_reference = ~series.running & (loop_s >= MIN_WALL_S)
    if is_reference.sum() < MIN_JOBS:
        return None
    shares = series.seconds[is_reference][:, trained].sum(axis=1) / loop_s[is_reference]
    return _quantile(shares, series.hours[is_reference], EXPECTED_QUANTILE)


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
    run_length = average_run_length(max(DETECTORS * len(slices), 1), HOURS_A_WEEK, alarms_a_week)
    result = []
    for run, slice_ in sorted(slices.items()):
        shares_of_run = shares.get(run, ())
        alarms = [
            Alarm(run, slice_, baseline_kind, *fields)
            for baseline_kind, fields in _alarms(
                shares_of_run, paces.get(run, ()), expectations.get(slice_), run_length
            )
        ]
        result += sorted(alarms, key=lambda alarm: alarm.hour)[:1]
    return result


def _alarms(
    shares: Sequence[float], paces: Sequence[float], min_share: float | None, run_length: float
) -> Iterator[tuple[str, tuple[int, float, float]]]:
    """Which of the watches alarm: the hour, what is expected, and what was lately."""
    if min_share is not None and min_share > 0:
        yield from _first_alarm("slice", shares, 0, EDetector(min_share, run_length))
    if len(shares) > BASELINE_SIZE:
        yield from _first_alarm(
            "share",
            shares,
            BASELINE_SIZE,
            _own_detector(shares[:BASELINE_SIZE], MIN_DROP, run_length),
        )
    if len(paces) > BASELINE_SIZE:
        usual_pace = median(paces[:BASELINE_SIZE])
        speeds = [min(1.0, usual_pace / pace) for pace in paces]
        yield from _first_alarm(
            "pace",
            speeds,
            BASELINE_SIZE,
            _own_detector(speeds[:BASELINE_SIZE], MIN_SLOWDOWN, run_length),
        )


def _own_detector(first: Sequence[float], min_drop: float, run_length: float) -> EDetector | None:
    expected, best = baseline(first, min_drop)
    return EDetector(expected, run_length, best) if expected > 0 else None


def _first_alarm(
    baseline_kind: str, values: Sequence[float], begin: int, detector: EDetector | None
) -> Iterator[tuple[str, tuple[int, float, float]]]:
    for hour in range(begin, len(values)) if detector else ():
        if detector and detector.update(values[hour]):
            recent = fmean(values[max(begin, hour + 1 - RECENT) : hour + 1])
            yield baseline_kind, (hour + 1, detector.expected, recent)
            return
