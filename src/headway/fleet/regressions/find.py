"""Regressions and gains of many slices: when, how much, which bucket, and what changed there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.fleet.regressions.changed import Change, changes
from headway.fleet.regressions.decompose import Values, by_cell, decompose
from headway.fleet.regressions.discovery import adjusted
from headway.fleet.regressions.energy import Deviations
from headway.fleet.regressions.permutation import ALL, Split, best_split
from headway.fleet.regressions.series import Ints, Series, beside_their_like, capped, lengths
from headway.ledger.leaves import EFFECTIVE

SLOT = 12 * 3600.0  # the grain of time
LEAST = 2  # slots on either side of a break: a day
JOBS = 20  # fewer are no series
LEVEL = 0.05  # the false discovery rate
POINTS = 0.5  # a smaller change is no finding
SEEN = 0.02  # points of a slice's time: a bucket below it is not tested
DEPTH = 6  # halvings; no history has more breaks worth telling


@dataclass(frozen=True)
class Options:
    """What counts as a finding."""

    level: float = LEVEL
    points: float = POINTS
    slot: float = SLOT
    shuffles: int = ALL
    dependent: bool = False
    like: tuple[str, ...] = ()  # fields by which jobs are compared with their like, besides length


@dataclass(frozen=True)
class Part:
    """What some of a slice's jobs, those of one model for instance, add to its change of ETT."""

    name: tuple[str, ...]
    mix: float
    within: float


@dataclass(frozen=True)
class Finding:
    """One change of one slice; all points are of accelerator-hours, after less before."""

    slice: tuple[str, ...]
    at: float  # seconds since the epoch
    since: float  # the time before it that is compared, and the time after it
    until: float
    bucket: str
    points: float  # by which the bucket grew, beside jobs of the same length
    ett_before: float
    ett_after: float
    mix: float  # of the change of ETT: other jobs than before
    within: float  # and: the same jobs did otherwise
    buckets: dict[str, float]  # the change within, by bucket
    parts: tuple[Part, ...]  # the change of ETT by the fields that are held equal; largest first
    hours: float  # accelerator-hours after it
    p: float
    level: float  # the false discovery rate at which it is still found
    fields: tuple[Change, ...]

    @property
    def regression(self) -> bool:
        """Whether training time was lost by it."""
        return (self.points > 0) != (self.bucket == EFFECTIVE)


@dataclass(frozen=True)
class _Break:
    """A split of the jobs that lie in the slots `low` to `high`."""

    low: int
    high: int
    split: Split
    channels: Ints


def find(
    series: Sequence[Series],
    now: float,
    options: Options | None = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Finding]:
    """The findings of all slices, the newest first; `tell` hears how many slices are done."""
    options = options or Options()
    first: list[_Break | None] = []
    for number, one in enumerate(series):
        first.append(_look(one, now, options, None))
        tell(number + 1)
    tested = [i for i, found in enumerate(first) if found is not None]
    levels = adjusted(np.array([_p(first[i]) for i in tested]), options.dependent)
    accepted = {i: float(level) for i, level in zip(tested, levels, strict=True)}
    believed = [i for i in tested if accepted[i] <= options.level]
    limit = max((_p(first[i]) for i in believed), default=0.0)
    findings: list[Finding] = []
    for i in believed:
        top = first[i]
        assert top is not None
        breaks = sorted(_further(series[i], now, options, top, limit), key=lambda b: b.split.at)
        findings += _told(series[i], now, options, breaks, accepted[i])
    kept = [one for one in findings if abs(one.points) >= options.points]
    return sorted(kept, key=lambda one: -one.at)


def _p(found: _Break | None) -> float:
    return found.split.p if found else 1.0


def slots(start: NDArray[np.float64], now: float, slot: float) -> tuple[Ints, int]:
    """The slot of each job, counted so that the last one ends now; and how many there are."""
    back = np.floor((now - start) / slot).astype(np.int64)
    count = int(back.max()) + 1 if back.size else 0
    return count - 1 - np.maximum(back, 0), count


def _look(
    series: Series, now: float, options: Options, between: tuple[int, int] | None
) -> _Break | None:
    """The best split of a series, or of what lies between two slots."""
    where, count = slots(series.start, now, options.slot)
    low, high = between or (0, count)
    inside = (where >= low) & (where < high) & (series.hours > 0)
    if inside.sum() < JOBS or high - low < 2 * LEAST:
        return None
    jobs = series.where(inside)
    weights, points = capped(jobs.hours), jobs.points
    shares = weights @ points / weights.sum()
    kept = (shares >= SEEN) | (np.array(jobs.buckets) == EFFECTIVE)
    channels = np.flatnonzero(kept)
    values = beside_their_like(points[:, channels], weights, _classes(jobs, weights, options))
    deviations = Deviations.of(values, weights, where[inside] - low, high - low)
    name = zlib.crc32("/".join(series.slice).encode()) + low * 7919 + high
    split = best_split(deviations, LEAST, name, shuffles=options.shuffles)
    if split is None:
        return None
    split = Split(split.at + low, split.channel, split.p, split.scores)
    return _Break(low, high, split, channels)


def _classes(jobs: Series, weights: NDArray[np.float64], options: Options) -> Ints:
    """Jobs of the same length, and of the same values of the fields that are held equal."""
    names, alike = _alike(jobs, options)
    both = lengths(jobs.wall, weights) * len(names) + alike
    return np.asarray(np.unique(both, return_inverse=True)[1]).reshape(-1)


def _alike(jobs: Series, options: Options) -> tuple[list[tuple[str, ...]], Ints]:
    """The values of the fields that are held equal, and which of them each job has."""
    if not options.like:
        return [()], np.zeros(jobs.start.size, dtype=np.int64)
    columns = np.stack([jobs.fields[name].astype(str) for name in options.like], axis=1)
    names, codes = np.unique(columns, axis=0, return_inverse=True)
    return [tuple(map(str, name)) for name in names], codes.reshape(-1)


def _further(
    series: Series, now: float, options: Options, found: _Break, limit: float, depth: int = 1
) -> list[_Break]:
    """A break, and those of the two sides that are as sure."""
    breaks = [found]
    if depth < DEPTH:
        at = found.split.at
        for between in ((found.low, at), (at, found.high)):
            one = _look(series, now, options, between)
            if one is not None and one.split.p <= limit:
                breaks += _further(series, now, options, one, limit, depth + 1)
    return breaks


def _told(
    series: Series, now: float, options: Options, breaks: list[_Break], level: float
) -> list[Finding]:
    """Each break beside the stretch before it and the one after it."""
    _, count = slots(series.start, now, options.slot)
    edges = [0, *(one.split.at for one in breaks), count]
    begin = now - count * options.slot
    times = [begin + edge * options.slot for edge in edges]
    return [
        _finding(series, options, one, level, (times[i], times[i + 1], times[i + 2]))
        for i, one in enumerate(breaks)
    ]


def _finding(
    series: Series, options: Options, found: _Break, level: float, times: tuple[float, float, float]
) -> Finding:
    since, at, until = times
    jobs = series.where((series.start >= since) & (series.start < until) & (series.hours > 0))
    after = jobs.start >= at
    weights, points = jobs.hours, jobs.points
    cells = _classes(jobs, capped(weights), options)
    count = int(cells.max()) + 1
    parts = decompose(
        *by_cell(cells[~after], count, weights[~after], points[~after]),
        *by_cell(cells[after], count, weights[after], points[after]),
    )
    within = dict(zip(jobs.buckets, map(float, parts.within.sum(axis=0)), strict=True))
    bucket = _bucket(jobs.buckets, found)
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
        buckets={leaf: change for leaf, change in within.items() if change},
        parts=_parts(jobs, options, cells, parts.mix[:, trained], parts.within[:, trained]),
        hours=float(weights[after].sum()),
        p=found.split.p,
        level=level,
        fields=tuple(changes(jobs.fields, jobs.start, capped(weights), column, at)),
    )


def _parts(
    jobs: Series, options: Options, cells: Ints, mix: Values, within: Values
) -> tuple[Part, ...]:
    names, alike = _alike(jobs, options)
    _, first = np.unique(cells, return_index=True)
    sums = [np.bincount(alike[first], part, len(names)) for part in (mix, within)]
    found = [
        Part(name, float(sums[0][i]), float(sums[1][i])) for i, name in enumerate(names) if name
    ]
    return tuple(sorted(found, key=lambda one: -abs(one.mix + one.within)))


def _bucket(buckets: tuple[str, ...], found: _Break) -> str:
    """The bucket that stands out most; training itself only where there is no other."""
    ranked = sorted(
        zip(found.split.scores, found.channels, strict=True), key=lambda pair: -float(pair[0])
    )
    names = [buckets[channel] for _, channel in ranked]
    return next((name for name in names if name != EFFECTIVE), EFFECTIVE)
