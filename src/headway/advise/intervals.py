"""Stretches of a run as sorted lists of `(start, end)` in ns that do not touch each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]
_start, _end = itemgetter(0), itemgetter(1)


def union(*parts: Iterable[Interval]) -> Intervals:
    """All that is in any of them."""
    out: list[Interval] = []
    for start, end in sorted(interval for part in parts for interval in part):
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return tuple(out)


def union_of_two(one: Intervals, other: Intervals) -> Intervals:
    """The union of two, at the price of where they meet."""
    if not other:
        return one
    low = bisect_left(one, other[0][0], key=_end)
    high = bisect_right(one, other[-1][1], key=_start)
    return one[:low] + union(one[low:high], other) + one[high:]


def intersect(one: Intervals, other: Intervals) -> Intervals:
    """What is in one and in the other."""
    out: list[Interval] = []
    one, other = _overlapping(one, other), _overlapping(other, one)
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            out.append((start, end))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(one: Intervals, other: Intervals) -> Intervals:
    """What is in one and not in the other."""
    out: list[Interval] = []
    other = _overlapping(other, one)
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if start < other[k][0]:
                out.append((start, other[k][0]))
            start = max(start, other[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return tuple(out)


def length(intervals: Intervals) -> int:
    """Of all of them together."""
    return sum(end - start for start, end in intervals)


def take_first(intervals: Intervals, ns: int) -> Intervals:
    """So much of them, from the beginning on."""
    out: list[Interval] = []
    for start, end in intervals:
        if ns <= 0:
            break
        out.append((start, min(end, start + ns)))
        ns -= end - start
    return tuple(out)


def take_last(intervals: Intervals, ns: int) -> Intervals:
    """So much of them, up to the end."""
    spared = length(intervals) - max(ns, 0)
    return subtract(intervals, take_first(intervals, spared)) if spared > 0 else intervals


def _overlapping(found: Intervals, other: Intervals) -> Intervals:
    """Those from the first to the last instant of the other."""
    if not other:
        return ()
    low = bisect_right(found, other[0][0], key=_end)
    return found[low : bisect_left(found, other[-1][1], lo=low, key=_start)]
