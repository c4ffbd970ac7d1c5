"""Timelines as sorted segments, sets of intervals, and how each is combined."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a timeline: half-open `[start, end)`, and its bucket."""

    start: int
    end: int
    bucket: str


def paint(base: Sequence[Segment], over: Sequence[Segment]) -> list[Segment]:
    """Replace parts of `base` by `over`; both and the result are sorted and without overlaps."""
    out: list[Segment] = []
    index = 0
    for under in base:
        at = under.start
        while index < len(over) and over[index].end <= at:
            index += 1
        scan = index
        while scan < len(over) and over[scan].start < under.end:
            top = over[scan]
            start, end = max(top.start, at), min(top.end, under.end)
            if start < end:
                if at < start:
                    out.append(Segment(at, start, under.bucket))
                out.append(Segment(start, end, top.bucket))
                at = end
            scan += 1
        if at < under.end:
            out.append(Segment(at, under.end, under.bucket))
    return join(out)


def join(segments: Iterable[Segment]) -> list[Segment]:
    """Join adjacent segments of the same bucket and remove empty ones."""
    out: list[Segment] = []
    for segment in segments:
        if segment.start >= segment.end:
            continue
        if out and out[-1].bucket == segment.bucket and out[-1].end == segment.start:
            out[-1] = Segment(out[-1].start, segment.end, segment.bucket)
        else:
            out.append(segment)
    return out


def union_sorted(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of intervals that are sorted by their start."""
    out: list[tuple[int, int]] = []
    for start, end in intervals:
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        elif start < end:
            out.append((start, end))
    return out


def clip(segments: Iterable[Segment], start: int, end: int) -> list[Segment]:
    """Return the parts of `segments` within `[start, end)`."""
    return [
        Segment(max(s.start, start), min(s.end, end), s.bucket)
        for s in segments
        if s.end > start and s.start < end
    ]


def innermost(spans: Sequence[Segment], opaque: frozenset[int] = frozenset()) -> list[Segment]:
    """Assign each instant to the innermost of nested spans: the span that started last.

    A span whose index is in `opaque` also owns the time of spans nested in it.
    """
    edges = sorted(
        [(s.start, 1, i) for i, s in enumerate(spans) if s.start < s.end]
        + [(s.end, 0, i) for i, s in enumerate(spans) if s.start < s.end],
        # Of spans with the same start, the longer one is the outer one.
        key=lambda edge: (edge[0], edge[1], -spans[edge[2]].end),
    )
    active: list[int] = []
    out: list[Segment] = []
    at = 0
    for time, opening, index in edges:
        if active and at < time:
            owner = next((i for i in active if i in opaque), active[-1])
            out.append(Segment(at, time, spans[owner].bucket))
        at = time
        if opening:
            active.append(index)
        else:
            active.remove(index)
    return join(out)


def by_priority(layers: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Combine layers; earlier ones have priority, and instants in no layer stay empty."""
    out: list[Segment] = []
    for layer in layers:
        out = _fill_gaps(out, layer)
    return out


def _fill_gaps(top: Sequence[Segment], bottom: Sequence[Segment]) -> list[Segment]:
    """Return `top`, with `bottom` in its gaps."""
    free: list[Segment] = []
    index = 0
    for segment in bottom:
        at = segment.start
        while index < len(top) and top[index].end <= at:
            index += 1
        scan = index
        while scan < len(top) and top[scan].start < segment.end:
            if at < top[scan].start:
                free.append(Segment(at, top[scan].start, segment.bucket))
            at = max(at, top[scan].end)
            scan += 1
        if at < segment.end:
            free.append(Segment(at, segment.end, segment.bucket))
    return join(sorted([*top, *free], key=lambda s: s.start))


def time_by_bucket(segments: Iterable[Segment]) -> dict[str, int]:
    """Sum nanoseconds by bucket."""
    sums: dict[str, int] = {}
    for segment in segments:
        sums[segment.bucket] = sums.get(segment.bucket, 0) + segment.end - segment.start
    return sums


Interval = tuple[int, int]
Intervals = tuple[Interval, ...]
_start, _end = itemgetter(0), itemgetter(1)


def union(*parts: Iterable[Interval]) -> Intervals:
    """Return the union of sets of intervals."""
    out: list[Interval] = []
    for start, end in sorted(interval for part in parts for interval in part):
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return tuple(out)


def union_of_two(first: Intervals, second: Intervals) -> Intervals:
    """Return the union of two sets; the cost depends on their overlapping range only."""
    if not second:
        return first
    low = bisect_left(first, second[0][0], key=_end)
    high = bisect_right(first, second[-1][1], key=_start)
    return first[:low] + union(first[low:high], second) + first[high:]


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return the intersection of two sets."""
    out: list[Interval] = []
    first, second = _overlapping(first, second), _overlapping(second, first)
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            out.append((start, end))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(first: Intervals, second: Intervals) -> Intervals:
    """Return the first set without the second."""
    out: list[Interval] = []
    second = _overlapping(second, first)
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if start < second[k][0]:
                out.append((start, second[k][0]))
            start = max(start, second[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return tuple(out)


def length(intervals: Intervals) -> int:
    """Return the total length."""
    return sum(end - start for start, end in intervals)


def take_first(intervals: Intervals, ns: int) -> Intervals:
    """Return the first `ns` of the intervals."""
    out: list[Interval] = []
    for start, end in intervals:
        if ns <= 0:
            break
        out.append((start, min(end, start + ns)))
        ns -= end - start
    return tuple(out)


def take_last(intervals: Intervals, ns: int) -> Intervals:
    """Return the last `ns` of the intervals."""
    spared = length(intervals) - max(ns, 0)
    return subtract(intervals, take_first(intervals, spared)) if spared > 0 else intervals


def _overlapping(intervals: Intervals, other: Intervals) -> Intervals:
    """Return the intervals that overlap the range of `other`."""
    if not other:
        return ()
    low = bisect_right(intervals, other[0][0], key=_end)
    return intervals[low : bisect_left(intervals, other[-1][1], lo=low, key=_start)]
