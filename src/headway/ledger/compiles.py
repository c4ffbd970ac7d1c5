"""PT2 compiles: the cause of each, the parts of its time, and its cache hits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.journal.reader import Span
from headway.ledger.merge import AttemptTimeline
from headway.ledger.model import Compile, Ledger, RankCompiles, RecompileLimitHit
from headway.ledger.record import AttemptRecord, RankRecord
from headway.ledger.segments import Segment, by_priority, clip, innermost, paint, time_by_bucket

PT2 = ("start.pt2_compile", "recover.pt2_compile")
BACKWARD_TRIGGERS = ("LAZY_BACKWARD", "CUDAGRAPH_RECORDING")  # of a graph that is already compiled
# Name of a step on a fast batch: see headway/startup/compile_ahead.py.
AHEAD = "compile_ahead"
# Spans that are a single part; the rest of a compile is split by torch's own measurements.
WHOLE = {
    "compile_import": "import",
    "compile_cache": "cache_load",
    "compile_autotune": "autotune",
    "compile_turn": "other",  # another rank compiles the same program first
}


def find_compiles(attempts: Sequence[AttemptRecord], zero: int) -> tuple[Compile, ...]:
    """Return all finished compiles, as each rank recorded them."""
    out = [
        compiled
        for index, attempt in enumerate(attempts)
        for rank in attempt.ranks
        for compiled in _of_life(index, rank, zero)
    ]
    return tuple(sorted(out, key=lambda c: (c.start, c.rank)))


def _of_life(index: int, rank: RankRecord, zero: int) -> list[Compile]:
    """Return a compile per graph; its backward part is compiled later, with the same id."""
    compiles: list[Compile] = []
    places: dict[str, int] = {}
    ahead = _compiled_ahead(rank)
    for span in _graph_spans(rank):
        number = str(span.fields.get("compile_id") or "")
        place = places.get(number) if span.fields.get("trigger") in BACKWARD_TRIGGERS else None
        if place is None or not number:
            places[number] = len(compiles)
            compiles.append(
                replace(
                    _compile(index, rank, span, zero),
                    missed_precompile=_missed_precompile(span, ahead),
                )
            )
            continue
        first = compiles[place]
        cached = first.cached and span.fields.get("cached") is not False
        later = first.backward + (span.end or span.start) - span.start
        compiles[place] = replace(first, backward=later, cached=cached)
    return compiles


def _compiled_ahead(rank: RankRecord) -> dict[str, int]:
    """Return the end of the early compile of each location; empty before the first step."""
    done = [
        (span.start, span.end)
        for span in rank.journal.spans
        if span.fields.get("what") == AHEAD and span.end is not None
    ]
    if rank.first_step_end is None:
        return {}
    return {
        str(span.fields["where"]): end
        for span in _graph_spans(rank)
        for start, end in done
        if span.fields.get("where") and start <= span.start < end
    }


def _missed_precompile(span: Span, ahead: Mapping[str, int]) -> bool:
    """Whether the first step on a real batch repeats an early compile."""
    done = ahead.get(str(span.fields.get("where")))
    return done is not None and span.start >= done and span.fields.get("step") == 0


def _graph_spans(rank: RankRecord) -> list[Span]:
    """Return the finished compiles, without spans that a user declared around torch's own."""
    spans = [s for s in rank.journal.spans if s.name == "compile" and s.end is not None]
    own = [s for s in spans if s.fields.get("compile_id")]
    return [
        span
        for span in spans
        if span.fields.get("compile_id")
        or not any(span.start <= inner.start < (span.end or 0) for inner in own)
    ]


def _compile(index: int, rank: RankRecord, span: Span, zero: int) -> Compile:
    fields, shift = span.fields, rank.shift - zero
    started = rank.first_step_end is not None and span.start + rank.shift >= rank.first_step_end
    reason, guard_values = str(fields.get("reason") or ""), fields.get("seen")
    return Compile(
        attempt=index,
        rank=rank.rank,
        start=span.start + shift,
        end=(span.end or span.start) + shift,
        location=str(fields.get("where") or fields.get("compile_id") or "?"),
        reason=reason or ("compiled after the first step" if started else ""),
        recompile=bool(reason) or started,
        cached=fields.get("cached") is True,
        caller=str(fields.get("caller") or ""),
        guard_values=guard_values if isinstance(guard_values, dict) else {},
    )


def recompile_limit_hits(
    attempts: Sequence[AttemptRecord], zero: int
) -> tuple[RecompileLimitHit, ...]:
    """Return each location where torch reached its recompile limit."""
    return tuple(
        RecompileLimitHit(
            attempt=index,
            rank=rank.rank,
            at=event["t"] + rank.shift - zero,
            where=str(event.get("where") or "?"),
            limit=str(event.get("limit") or "recompile_limit"),
            reason=str(event.get("reason") or ""),
        )
        for index, attempt in enumerate(attempts)
        for rank in attempt.ranks
        for event in rank.journal.named("recompile_limit")
    )


def compiles_by_rank(
    attempts: Sequence[AttemptRecord], timelines: Sequence[AttemptTimeline]
) -> tuple[RankCompiles, ...]:
    """Return the parts of each rank's time in the compiler, and its cache hits."""
    by_rank: dict[int, RankCompiles] = {}
    for attempt, timeline in zip(attempts, timelines, strict=True):
        for record, account in zip(attempt.ranks, timeline.ranks, strict=True):
            caches = _caches(record)
            parts = time_by_bucket(split_compile_time(record, account.segments))
            if not parts and not caches.asked:
                continue
            before = by_rank.get(record.rank, RankCompiles(rank=record.rank))
            by_rank[record.rank] = before.plus(replace(caches, parts=parts))
    return tuple(by_rank[rank] for rank in sorted(by_rank))


def compile_parts(
    attempts: Sequence[AttemptRecord], timelines: Sequence[AttemptTimeline]
) -> dict[str, int]:
    """Split the run's time in the compiler into parts that sum exactly to its buckets.

    If several ranks compile at an instant, the rank that finishes last in the attempt counts. Where
    its part is only known as `other`, the next rank with a known part counts.
    """
    sums: dict[str, int] = {}
    for attempt, timeline in zip(attempts, timelines, strict=True):
        accounts = dict(zip(map(id, attempt.ranks), timeline.ranks, strict=True))
        ranks = [
            split_compile_time(rank, accounts[id(rank)].segments) for rank in attempt.trainers()
        ]
        ranks.sort(key=lambda parts: -parts[-1].end if parts else 0)
        layers = [[part for part in parts if part.bucket != "other"] for parts in ranks]
        compiling = [Segment(s.start, s.end, "other") for s in timeline.segments if s.bucket in PT2]
        painted = paint(compiling, by_priority(layers))
        for name, ns in time_by_bucket(painted).items():
            sums[name] = sums.get(name, 0) + ns
    return sums


def split_compile_time(rank: RankRecord, segments: Sequence[Segment]) -> list[Segment]:
    """Return this rank's time in the compiler, with the part as the bucket of each segment."""
    compiling = [Segment(s.start, s.end, "other") for s in segments if s.bucket in PT2]
    if not compiling:
        return []
    spans = [s for s in rank.journal.spans if s.end is not None]
    named = [Segment(s.start, s.end or 0, WHOLE[s.name]) for s in spans if s.name in WHOLE]
    inner = innermost(named)
    layers = [inner, _graphs(_graph_spans(rank), inner)]
    parts = [
        Segment(s.start + rank.shift, s.end + rank.shift, s.bucket) for s in by_priority(layers)
    ]
    return paint(compiling, parts)


def _graphs(spans: Sequence[Span], inner: Sequence[Segment]) -> list[Segment]:
    """Lay out the parts that torch measured of each compile, sequentially within its time.

    Their real order is not known, and no result depends on it.
    """
    out: list[Segment] = []
    at = 0
    for span in sorted(spans, key=lambda s: s.start):
        start, end = max(span.start, at), span.end or span.start
        if start >= end:
            continue  # within a compile of another thread
        at = end
        nested = sum(s.end - s.start for s in clip(inner, start, end))
        room = end - start - nested
        for name, ns in _exclusive(span.fields, room, nested):
            start = _lay(out, inner, start, end, name, ns)
        _lay(out, inner, start, end, "other", end - start)
    return out


def _lay(
    out: list[Segment], inner: Sequence[Segment], start: int, end: int, name: str, ns: int
) -> int:
    """Lay out `ns` of a part from `start`, around nested segments, and return its end."""
    for nested in clip(inner, start, end):
        if ns <= 0:
            break
        piece = min(nested.start - start, ns)
        if piece > 0:
            out.append(Segment(start, start + piece, name))
            ns -= piece
        start = start + piece if ns <= 0 else nested.end
    if ns > 0:
        piece = min(ns, end - start)
        out.append(Segment(start, start + piece, name))
        start += piece
    return start


def _exclusive(fields: Mapping[str, Any], room: int, nested: int) -> Iterator[tuple[str, int]]:
    """Yield each part without the parts nested in it, limited to the available `room`.

    torch's times include what is nested in them: mostly imports, in the time of AOTAutograd.
    """
    parts_us = fields.get("parts_us")
    us = {name: _ns(parts_us.get(name)) for name in _BELOW} if isinstance(parts_us, dict) else {}
    kernels, tuning = us.get("triton", 0) + us.get("cpp", 0), us.get("autotune", 0)
    inductor = max(us.get("inductor", 0), kernels + tuning)
    aot = max(us.get("aot_autograd", 0), inductor)
    dynamo = max(us.get("dynamo", 0), aot)
    own_aot = max(aot - inductor - nested, 0)
    parts = {
        "dynamo": dynamo - aot,
        "cache_load" if _loaded_from_cache(fields) else "aot_autograd": own_aot,
        "inductor": inductor - kernels - tuning,
        "triton": us.get("triton", 0),
        "cpp": us.get("cpp", 0),
        "autotune": tuning,
    }
    for name, ns in parts.items():
        piece = min(ns, room)
        room -= piece
        yield name, piece


_BELOW = ("dynamo", "aot_autograd", "inductor", "triton", "cpp", "autotune")


def _loaded_from_cache(fields: Mapping[str, Any]) -> bool:
    """Whether AOTAutograd's cache had the graph, so that its time was the time to load it."""
    hits, misses = _counts(fields.get("cache"), "aot")
    return bool(hits) and not misses


def _caches(rank: RankRecord) -> RankCompiles:
    total = RankCompiles(rank=rank.rank)
    for span in rank.journal.spans:
        if span.name == "compile":
            fx, aot = (_counts(span.fields.get("cache"), name) for name in ("fx", "aot"))
            bypassed = span.fields.get("bypassed")
            reasons = [str(text) for text in bypassed] if isinstance(bypassed, list) else []
            caches = RankCompiles(
                rank=rank.rank, fx=fx, aot=aot, bypassed=dict.fromkeys(reasons, 1)
            )
            total = total.plus(caches)
    return total


def _counts(cache: Any, name: str) -> tuple[int, int]:
    pair = cache.get(name) if isinstance(cache, dict) else None
    if isinstance(pair, list) and len(pair) == 2 and all(type(value) is int for value in pair):
        return pair[0], pair[1]
    return 0, 0


def _ns(us: Any) -> int:
    return us * 1000 if type(us) is int and 0 <= us < 1 << 50 else 0


def first_compiles(ledger: Ledger, attempt: int | None = None) -> list[Compile]:
    """Return the compiles that are not recompiles, of `attempt` or of all attempts."""
    return [c for c in ledger.compiles if not c.recompile and attempt in (None, c.attempt)]
