"""Regressions and improvements of slices: when, how large, in which bucket, with which fields."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.fleet.regressions.attribution import (
    FieldShift,
    Values,
    by_cell,
    decompose,
    field_shifts,
)
from headway.fleet.regressions.changepoint import SHUFFLES, Deviations, Split, best_split
from headway.fleet.regressions.cohorts import (
    Ints,
    Series,
    cap_weights,
    duration_bins,
    standardize_within_cohort,
)
from headway.fleet.regressions.hosts import benjamini_hochberg
from headway.ledger.buckets import EFFECTIVE

SLOT_S = 12 * 3600.0  # time resolution
MIN_SLOTS = 2  # on either side of a change point: a day
MIN_JOBS = 20  # in a series
FDR = 0.05  # false discovery rate
MIN_CHANGE = 0.5  # of a bucket, in points
MIN_SHARE = 0.02  # of a slice's time, in a bucket that is tested
MAX_DEPTH = 6  # of recursive splits


@dataclass(frozen=True)
class ScanOptions:
    """Thresholds of a scan."""

    fdr: float = FDR
    min_change: float = MIN_CHANGE
    slot_s: float = SLOT_S
    shuffles: int = SHUFFLES
    dependent: bool = False
    control_fields: tuple[str, ...] = ()  # jobs are compared within equal values of these


@dataclass(frozen=True)
class Contribution:
    """Contribution of some jobs of a slice, such as those of one model, to its change of ETT."""

    name: tuple[str, ...]
    mix: float
    within: float


@dataclass(frozen=True)
class Finding:
    """One change of one slice. Points are weighted by accelerator-hours, after minus before."""

    slice: tuple[str, ...]
    at: float  # seconds since the epoch
    since: float  # start and end of the time that is compared
    until: float
    bucket: str
    points: float  # change of the bucket among jobs of similar duration
    ett_before: float
    ett_after: float
    mix: float  # part of the change of ETT due to a different mix of jobs
    within: float  # part due to changes of similar jobs
    buckets: dict[str, float]  # change within cohorts, by bucket
    parts: tuple[Contribution, ...]  # of ETT by values of the control fields, largest first
    hours: float  # accelerator-hours after the change
    p: float
    level: float  # smallest false discovery rate at which it is still reported
    fields: tuple[FieldShift, ...]

    @property
    def regression(self) -> bool:
        """Whether it reduced training time."""
        return (self.points > 0) != (self.bucket == EFFECTIVE)


@dataclass(frozen=True)
class _ChangePoint:
    """A split of the jobs in the slots `low` to `high`."""

    low: int
    high: int
    split: Split
    channels: Ints


def find(
    series: Sequence[Series],
    now: float,
    options: ScanOptions | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Finding]:
    """The findings of all slices, the newest first; `progress` receives the slices done."""
    options = options or ScanOptions()
    first: list[_ChangePoint | None] = []
    for number, current in enumerate(series):
        first.append(_best_change_point(current, now, options, None))
        progress(number + 1)
    tested = [i for i, change_point in enumerate(first) if change_point is not None]
    levels = benjamini_hochberg(np.array([_p_value(first[i]) for i in tested]), options.dependent)
    levels_by_slice = {i: float(level) for i, level in zip(tested, levels, strict=True)}
    accepted = [i for i in tested if levels_by_slice[i] <= options.fdr]
    limit = max((_p_value(first[i]) for i in accepted), default=0.0)
    findings: list[Finding] = []
    for i in accepted:
        best = first[i]
        assert best is not None
        breaks = sorted(
            _further_change_points(series[i], now, options, best, limit), key=lambda b: b.split.at
        )
        findings += _to_findings(series[i], now, options, breaks, levels_by_slice[i])
    reported = [finding for finding in findings if abs(finding.points) >= options.min_change]
    return sorted(reported, key=lambda finding: -finding.at)


def _p_value(change_point: _ChangePoint | None) -> float:
    return change_point.split.p if change_point else 1.0


def slots(start: NDArray[np.float64], now: float, slot: float) -> tuple[Ints, int]:
    """The slot of each job, such that the last slot ends now, and the number of slots."""
    back = np.floor((now - start) / slot).astype(np.int64)
    count = int(back.max()) + 1 if back.size else 0
    return count - 1 - np.maximum(back, 0), count


def _best_change_point(
    series: Series, now: float, options: ScanOptions, between: tuple[int, int] | None
) -> _ChangePoint | None:
    """The best split of a series, or of the part between two slots."""
    slot_of, count = slots(series.start, now, options.slot_s)
    low, high = between or (0, count)
    selected = (slot_of >= low) & (slot_of < high) & (series.hours > 0)
    if selected.sum() < MIN_JOBS or high - low < 2 * MIN_SLOTS:
        return None
    jobs = series.where(selected)
    weights, points = cap_weights(jobs.hours), jobs.points
    shares = weights @ points / weights.sum()
    is_tested = (shares >= MIN_SHARE) | (np.array(jobs.buckets) == EFFECTIVE)
    channels = np.flatnonzero(is_tested)
    values = standardize_within_cohort(
        points[:, channels], weights, _classes(jobs, weights, options)
    )
    deviations = Deviations.of(values, weights, slot_of[selected] - low, high - low)
    name = zlib.crc32("/".join(series.slice).encode()) + low * 7919 + high
    split = best_split(deviations, MIN_SLOTS, name, shuffles=options.shuffles)
    if split is None:
        return None
    split = Split(split.at + low, split.channel, split.p, split.scores)
    return _ChangePoint(low, high, split, channels)


def _classes(jobs: Series, weights: NDArray[np.float64], options: ScanOptions) -> Ints:
    """Cohorts of jobs with a similar duration and equal values of the control fields."""
    names, control_group = _control_groups(jobs, options)
    combined = duration_bins(jobs.wall, weights) * len(names) + control_group
    return np.asarray(np.unique(combined, return_inverse=True)[1]).reshape(-1)


def _control_groups(jobs: Series, options: ScanOptions) -> tuple[list[tuple[str, ...]], Ints]:
    """The combinations of values of the control fields, and the index of each job's combination."""
    if not options.control_fields:
        return [()], np.zeros(jobs.start.size, dtype=np.int64)
    columns = np.stack([jobs.fields[name].astype(str) for name in options.control_fields], axis=1)
    names, group_of = np.unique(columns, axis=0, return_inverse=True)
    return [tuple(map(str, name)) for name in names], group_of.reshape(-1)


def _further_change_points(
    series: Series,
    now: float,
    options: ScanOptions,
    change_point: _ChangePoint,
    limit: float,
    depth: int = 1,
) -> list[_ChangePoint]:
    """A change point, and further ones on both sides that are at least as significant."""
    breaks = [change_point]
    if depth < MAX_DEPTH:
        at = change_point.split.at
        for between in ((change_point.low, at), (at, change_point.high)):
            further = _best_change_point(series, now, options, between)
            if further is not None and further.split.p <= limit:
                breaks += _further_change_points(series, now, options, further, limit, depth + 1)
    return breaks


def _to_findings(
    series: Series, now: float, options: ScanOptions, breaks: list[_ChangePoint], level: float
) -> list[Finding]:
    """Compare the intervals before and after each change point."""
    _, count = slots(series.start, now, options.slot_s)
    edges = [0, *(change_point.split.at for change_point in breaks), count]
    begin = now - count * options.slot_s
    times = [begin + edge * options.slot_s for edge in edges]
    return [
        _finding(series, options, change_point, level, (times[i], times[i + 1], times[i + 2]))
        for i, change_point in enumerate(breaks)
    ]


def _finding(
    series: Series,
    options: ScanOptions,
    change_point: _ChangePoint,
    level: float,
    times: tuple[float, float, float],
) -> Finding:
    since, at, until = times
    jobs = series.where((series.start >= since) & (series.start < until) & (series.hours > 0))
    after = jobs.start >= at
    weights, points = jobs.hours, jobs.points
    cells = _classes(jobs, cap_weights(weights), options)
    count = int(cells.max()) + 1
    parts = decompose(
        *by_cell(cells[~after], count, weights[~after], points[~after]),
        *by_cell(cells[after], count, weights[after], points[after]),
    )
    within = dict(zip(jobs.buckets, map(float, parts.within.sum(axis=0)), strict=True))
    bucket = _bucket(jobs.buckets, change_point)
    trained = jobs.buckets.index(EFFECTIVE)
    column = points[:, jobs.buckets.index(bucket)]
    return Finding(
        slice=series.slice,
        at=at,
        since=since,
        until=until,
        bucket=bucket,
        points=within[bucket],
        ett_before=float(np.average(points[~after, trained], weights=weights[~after])),
        ett_after=float(np.average(points[after, trained], weights=weights[after])),
        mix=float(parts.mix[:, trained].sum()),
        within=within[EFFECTIVE],
        buckets={bucket: change for bucket, change in within.items() if change},
        parts=_contributions(jobs, options, cells, parts.mix[:, trained], parts.within[:, trained]),
        hours=float(weights[after].sum()),
        p=change_point.split.p,
        level=level,
        fields=tuple(field_shifts(jobs.fields, jobs.start, cap_weights(weights), column, at)),
    )


def _contributions(
    jobs: Series, options: ScanOptions, cells: Ints, mix: Values, within: Values
) -> tuple[Contribution, ...]:
    names, group_of = _control_groups(jobs, options)
    _, first_rows = np.unique(cells, return_index=True)
    sums = [np.bincount(group_of[first_rows], values, len(names)) for values in (mix, within)]
    contributions = [
        Contribution(name, float(sums[0][i]), float(sums[1][i]))
        for i, name in enumerate(names)
        if name
    ]
    return tuple(
        sorted(contributions, key=lambda contribution: -abs(contribution.mix + contribution.within))
    )


def _bucket(buckets: tuple[str, ...], change_point: _ChangePoint) -> str:
    """The most significant bucket; effective training only if there is no other."""
    ranked = sorted(
        zip(change_point.split.scores, change_point.channels, strict=True),
        key=lambda pair: -float(pair[0]),
    )
    names = [buckets[channel] for _, channel in ranked]
    return next((name for name in names if name != EFFECTIVE), EFFECTIVE)
