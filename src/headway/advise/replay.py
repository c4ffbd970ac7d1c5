"""Recompute the buckets of a run with some of its time removed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headway.ledger import segments as ledger_segments
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Attempt, Ledger
from headway.ledger.segments import Intervals, Segment, intersect, length, union


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run without some of its time."""

    wall: int
    segments: tuple[Segment, ...]
    buckets: Mapping[str, int]

    @property
    def ett_percent(self) -> float:
        return 100.0 * self.buckets.get(EFFECTIVE, 0) / self.wall if self.wall else 0.0


def replay(ledger: Ledger, removed: Intervals) -> Replayed:
    """Cut intervals out of the timeline and move up what follows."""
    removed_segments = [Segment(start, end, "") for start, end in removed]
    out: list[Segment] = []
    at = 0
    for segment in ledger_segments.paint(ledger.segments, removed_segments):
        if segment.bucket:
            out.append(Segment(at, at + segment.end - segment.start, segment.bucket))
            at = out[-1].end
    segments = ledger_segments.join(out)
    return Replayed(at, tuple(segments), ledger_segments.time_by_bucket(segments))


def lost_time(ledger: Ledger) -> Intervals:
    """All time that was not training on new data."""
    return union((s.start, s.end) for s in ledger.segments if s.bucket != EFFECTIVE)


def time_in(ledger: Ledger, leaves: Collection[str], attempt: int | None = None) -> Intervals:
    """Intervals that the run spent in these buckets, optionally within one attempt."""
    if attempt is None:
        return union((s.start, s.end) for s in ledger.segments if s.bucket in leaves)
    start, end = ledger.windows[attempt]
    low = bisect_right(ledger.segments, start, key=lambda s: s.end)
    high = bisect_left(ledger.segments, end, key=lambda s: s.start)
    inside = [s for s in ledger.segments[low:high] if s.bucket in leaves]
    return union((max(s.start, start), min(s.end, end)) for s in inside)


def buckets_of(*stages: str) -> tuple[str, ...]:
    """The buckets of these stages, in the first start and in recoveries."""
    return tuple(f"{group}.{stage}" for group in ("start", "recover") for stage in stages)


def accelerator_ns(ledger: Ledger, intervals: Intervals) -> int:
    """Time multiplied by the number of accelerators that the run held at that time."""
    if not ledger.attempts:
        return length(intervals)
    most = max(map(_world_size, ledger.attempts)) or 1
    sizes = [_world_size(attempt) or most for attempt in ledger.attempts]
    return sum(
        size * length(intersect(intervals, (window,)))
        for size, window in zip(sizes, ledger.windows, strict=True)
    )


def _world_size(attempt: Attempt) -> int:
    return max(len(attempt.ranks), attempt.world or 0)
