"""The timelines of a run encoded for its HTML page: exact if they fit, else coarser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.format import duration, one_line
from headway.ledger.buckets import BUCKETS, EFFECTIVE, MEANING
from headway.ledger.model import Ledger, RankLedger
from headway.ledger.segments import Segment
from headway.web.page import script_json

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HOLE: Final = "_"
_TICKS: Final = 4_000_000  # the finest clock of the page: this many ticks in the wall time
_MAX_RANKS: Final = 1024
_MAX_MARKS: Final = 500  # attempts and failures


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the page omits: the order within intervals of `floor`, and some ranks."""

    floor: str | None
    left_out: int


def pack_tracks(ledger: Ledger, room: int) -> tuple[dict[str, Any], Resolution | None]:
    """Encode each track as a string, coarsened until all fit into `room` bytes."""
    ranks = _shown_ranks(ledger)
    lines = [ledger.segments, *(rank.segments for rank in ranks)]
    tick = max(1_000, -(-ledger.wall // _TICKS))
    head = {
        "tick": tick,
        "wall": ledger.wall,
        "leaves": [[bucket, MEANING[bucket]] for bucket in BUCKETS],
        "letters": _LETTERS,
        "labels": ["run", *(f"rank {rank.rank}" for rank in ranks)],
        "hosts": ["", *(one_line(", ".join(rank.hosts), 60) for rank in ranks)],
        "attempts": [
            [a.index, a.start // tick, a.end // tick, a.outcome, a.first_step, a.last_step]
            for a in ledger.attempts[:_MAX_MARKS]
        ],
        "failures": [
            [f.at // tick, f.attempt, f.root_rank, one_line(f.category, 80),
             one_line(f.evidence, 160)]
            for f in ledger.failures[:_MAX_MARKS]
        ],
    }  # fmt: skip
    room -= len(script_json(head).encode())
    encoded, floor = _fit(lines, tick, ledger.wall, room)
    left_out = len(ledger.ranks) - len(ranks)
    coarse = Resolution(duration(floor) if floor else None, left_out) if floor or left_out else None
    return {**head, "floor": floor, "tracks": encoded}, coarse


def _shown_ranks(ledger: Ledger) -> list[RankLedger]:
    """Return all ranks; if there are too many, those with the least effective time."""
    if len(ledger.ranks) <= _MAX_RANKS:
        return list(ledger.ranks)
    slowest = sorted(ledger.ranks, key=lambda r: r.buckets.get(EFFECTIVE, 0))[:_MAX_RANKS]
    return sorted(slowest, key=lambda r: r.rank)


def _fit(
    lines: Sequence[Sequence[Segment]], tick: int, wall: int, room: int
) -> tuple[list[str], int]:
    """Return the encoded tracks, and the interval in which their order is lost (0: none)."""
    floor = 0
    while True:
        encoded = [encode(line, tick, floor) for line in lines]
        size = sum(map(len, encoded)) + 3 * len(encoded)
        if size <= room or floor > wall:
            return encoded, floor
        # The size is about inverse to the floor; the first guess is the mean length of a piece.
        mean = wall * len(lines) // max(1, sum(map(len, lines)))
        floor = max(floor * 3 // 2, mean * size // max(room, 1), tick)


def encode(segments: Sequence[Segment], tick: int, floor: int = 0) -> str:
    """Encode as `A120N3400`: the letter of each bucket and its length in ticks, from zero."""
    letters = dict(zip(BUCKETS, _LETTERS, strict=False))
    parts, now = [], 0
    for start, end, bucket in _coarsened(_merged(segments), floor):
        first, last = start // tick, end // tick
        if first > now:
            parts.append(f"{_HOLE}{first - now}")
            now = first
        if last > now:
            parts.append(f"{letters[bucket]}{last - now}")
            now = last
    return "".join(parts)


def _merged(segments: Sequence[Segment]) -> Iterator[tuple[int, int, str]]:
    """Merge neighbors with the same bucket."""
    start, end, bucket = 0, 0, ""
    for s in segments:
        if s.bucket == bucket and s.start == end:
            end = s.end
            continue
        if end > start:
            yield start, end, bucket
        start, end, bucket = s.start, s.end, s.bucket
    if end > start:
        yield start, end, bucket


def _coarsened(
    pieces: Iterator[tuple[int, int, str]], floor: int
) -> Iterator[tuple[int, int, str]]:
    """Group pieces shorter than `floor` by bucket over intervals of about `floor`.

    Each bucket keeps its exact time; only the order inside an interval is lost.
    """
    totals: dict[str, int] = {}
    begin, until = 0, 0
    for start, end, bucket in pieces:
        if totals and (end - start >= floor or start != until or until - begin >= floor):
            yield from _end_to_end(totals, begin)
            totals = {}
        if end - start >= floor:
            yield start, end, bucket
            continue
        begin = begin if totals else start
        until = end
        totals[bucket] = totals.get(bucket, 0) + end - start
    yield from _end_to_end(totals, begin)


def _end_to_end(totals: Mapping[str, int], start: int) -> Iterator[tuple[int, int, str]]:
    for bucket, ns in sorted(totals.items(), key=lambda pair: -pair[1]):
        yield start, start + ns, bucket
        start += ns
