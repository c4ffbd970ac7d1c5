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
EXPECTED_QUANTILE = 0.02  # share of a slice's accelerator-hours below the expected share
MIN_WALL_S = 2 * 3600.0  # minimum wall time of a finished job that counts for the expected share
MIN_JOBS = 20
MIN_DROP = 0.01  # of the effective share, below the first hours of the job
MIN_SLOWDOWN = 0.05  # of the step rate
RECENT = 3  # number of last observations that an alarm shows
DETECTORS = 3  # per job: against its slice, its own first share and its own first pace


@dataclass(frozen=True)
class Alarm:
    """A running job that performs below its expected level; `hour` counts its training hours."""

    run_id: str
    slice: tuple[str, ...]
    beside: str  # "slice", or "share" or "pace" of its own first hours
    hour: int
    expected: float  # 0 to 1: share of an hour, or of the initial step rate
    lately: float  # mean over the last hours before the alarm

    @property
    def words(self) -> str:
        if self.beside == "pace":
            return f"makes steps at {self.lately:.0%} of the rate of its first hours"
        reference = "its slice" if self.beside == "slice" else "its first hours"
        return (
            f"trains {self.lately:.1%} of its time; "
            f"at least {self.expected:.1%} expected from {reference}"
        )


def in_loop(bucket: str) -> bool:
    """Whether the time counts: starts and interruptions are reported elsewhere."""
    return group(bucket) in ("train", "waste", "unknown") or bucket in (LOST, HANG)


def trains(bucket: str) -> bool:
    """Whether the job makes steps in this bucket, even if they are rolled back later."""
    return bucket in (EFFECTIVE, LOST)


class SavedStep(NamedTuple):
    """One save of a running job."""

    attempt: int
    accelerators: int
    at: datetime
    step: int


def seconds_per_step(saves: Sequence[SavedStep]) -> list[float]:
    """Seconds per step between saves at least an hour apart, with the current number of
    accelerators.
    """
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
    """The effective share of the loop that all but the worst finished jobs of a slice reach."""
    loop = np.array([in_loop(bucket) for bucket in series.buckets])
    trained = np.array([trains(bucket) for bucket in series.buckets])
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
    """The first alarm of each running job, given effective shares and seconds per step by hour."""
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
    """Alarms of the detectors: training hour, expected share and recent share."""
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
