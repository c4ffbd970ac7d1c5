"""Sorted, gap-free lists of segments, and the few ways in which they are combined."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from headway.ledger.leaves import DETECTION, DOWNTIME, EFFECTIVE, HANG, UNKNOWN
from headway.ledger.model import Segment


def paint(base: Sequence[Segment], over: Sequence[Segment]) -> list[Segment]:
    """`over` on top of `base`; each is sorted and free of overlaps, and so is the result."""
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
                    out.append(Segment(at, start, under.leaf))
                out.append(Segment(start, end, top.leaf))
                at = end
            scan += 1
        if at < under.end:
            out.append(Segment(at, under.end, under.leaf))
    return join(out)


def join(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours of one leaf become one segment; empty ones vanish."""
    out: list[Segment] = []
    for segment in segments:
        if segment.start >= segment.end:
            continue
        if out and out[-1].leaf == segment.leaf and out[-1].end == segment.start:
            out[-1] = Segment(out[-1].start, segment.end, segment.leaf)
        else:
            out.append(segment)
    return out


def union_sorted(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals sorted by their start, without overlaps."""
    out: list[tuple[int, int]] = []
    for start, end in intervals:
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        elif start < end:
            out.append((start, end))
    return out


def clip(segments: Iterable[Segment], start: int, end: int) -> list[Segment]:
    """What of `segments` lies within `[start, end)`."""
    return [
        Segment(max(s.start, start), min(s.end, end), s.leaf)
        for s in segments
        if s.end > start and s.start < end
    ]


def innermost(spans: Sequence[Segment], opaque: frozenset[int] = frozenset()) -> list[Segment]:
    """One owner per instant among nested spans: the one that began last.

    A span whose index is in `opaque` keeps what is nested in it.
    """
    edges = sorted(
        [(s.start, 1, i) for i, s in enumerate(spans) if s.start < s.end]
        + [(s.end, 0, i) for i, s in enumerate(spans) if s.start < s.end],
        # Of spans that begin together the longer one is the outer one.
        key=lambda edge: (edge[0], edge[1], -spans[edge[2]].end),
    )
    active: list[int] = []
    out: list[Segment] = []
    at = 0
    for time, opening, index in edges:
        if active and at < time:
            owner = next((i for i in active if i in opaque), active[-1])
            out.append(Segment(at, time, spans[owner].leaf))
        at = time
        if opening:
            active.append(index)
        else:
            active.remove(index)
    return join(out)


def by_priority(layers: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Earlier layers win over later ones; instants with none stay empty."""
    out: list[Segment] = []
    for layer in layers:
        out = _fill_gaps(out, layer)
    return out


def _fill_gaps(top: Sequence[Segment], bottom: Sequence[Segment]) -> list[Segment]:
    """`bottom` where `top` leaves room, and `top`."""
    free: list[Segment] = []
    index = 0
    for segment in bottom:
        at = segment.start
        while index < len(top) and top[index].end <= at:
            index += 1
        scan = index
        while scan < len(top) and top[scan].start < segment.end:
            if at < top[scan].start:
                free.append(Segment(at, top[scan].start, segment.leaf))
            at = max(at, top[scan].end)
            scan += 1
        if at < segment.end:
            free.append(Segment(at, segment.end, segment.leaf))
    return join(sorted([*top, *free], key=lambda s: s.start))


def time_by_bucket(segments: Iterable[Segment]) -> dict[str, int]:
    """Nanoseconds by leaf."""
    sums: dict[str, int] = {}
    for segment in segments:
        sums[segment.leaf] = sums.get(segment.leaf, 0) + segment.end - segment.start
    return sums


def merge_ranks(timelines: Sequence[Sequence[Segment]], waiting: frozenset[str]) -> list[Segment]:
    """The run's timeline from its ranks': all cover the same interval.

    An instant is effective only while every rank trains. Otherwise it belongs to the rank that
    holds the others up: of those that do not train, the one that comes last to training, or to
    the collective that they meet in before. A rank whose leaf is in `waiting` stands in such a
    collective for the others, and is asked last; one of which nothing is known is asked before
    those only. Of ranks that come back together, such as never, see `_TIES`.
    """
    if len(timelines) == 1:
        return list(timelines[0])
    edges = heapq.merge(*(_edges(rank, t, waiting) for rank, t in enumerate(timelines)))
    idle: dict[int, _Claim] = {}
    out: list[Segment] = []
    at: int | None = None
    for time, rank, state in edges:
        if at is not None and at < time:
            leaf = max(idle.values())[4] if idle else EFFECTIVE
            if out and out[-1].leaf == leaf and out[-1].end == at:
                out[-1] = Segment(out[-1].start, time, leaf)
            else:
                out.append(Segment(at, time, leaf))
        at = time
        if state is None:
            idle.pop(rank, None)
        else:
            idle[rank] = state
    return out


# How much is known of it, when its rank is back, which leaf of a tie, minus the rank, the leaf.
_Claim = tuple[int, int, int, int, str]
_State = _Claim | None
_TIES = {HANG: 3, DETECTION: 1, DOWNTIME: 1, UNKNOWN: 0}  # any other leaf: 2


def _edges(
    rank: int, timeline: Sequence[Segment], waiting: frozenset[str]
) -> list[tuple[int, int, _State]]:
    """At which times a rank changes its state: None for training, else its claim."""
    edges: list[tuple[int, int, _State]] = []
    back = timeline[-1].end  # when this rank is where the others wait for it
    for segment in reversed(timeline):
        if segment.leaf == EFFECTIVE:
            edges.append((segment.start, rank, None))
            back = segment.start
        else:
            known = 0 if segment.leaf in waiting else 1 if segment.leaf == UNKNOWN else 2
            claim = (known, back, _TIES.get(segment.leaf, 2), -rank, segment.leaf)
            edges.append((segment.start, rank, claim))
            if segment.leaf in waiting:
                back = segment.start  # who comes last to the collective holds the others up
    edges.reverse()
    edges.append((timeline[-1].end, rank, None))
    return edges
