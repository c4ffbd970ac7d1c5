"""PT2 compiles: each with its cause, the parts of its time, and what the caches had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.journal.reader import Span
from headway.ledger import segments
from headway.ledger import segments as ledger_segments
from headway.ledger.merge import AttemptTimeline
from headway.ledger.model import Compile, Ledger, RankCompiles, RecompileLimitHit
from headway.ledger.record import AttemptRecord, RankRecord
from headway.ledger.segments import Segment

PT2 = ("start.pt2_compile", "recover.pt2_compile")
BACKWARD_TRIGGERS = ("LAZY_BACKWARD", "CUDAGRAPH_RECORDING")  # of a graph that was compiled before
AHEAD = (
    "compile_ahead"  # what a step on a fast batch is called: see headway/startup/compile_ahead.py
)
# Spans that are one part as a whole; the rest of a compile is split by what torch measured in it.
WHOLE = {
    "compile_import": "import",
    "compile_cache": "cache_load",
    "compile_autotune": "autotune",
    "compile_turn": "other",  # another rank compiles the same program first
}


def find_compiles(drafts: Sequence[AttemptRecord], zero: int) -> tuple[Compile, ...]:
    """All finished compiles, as each rank saw them."""
    out = [
        one
        for index, draft in enumerate(drafts)
        for life in draft.lives
        for one in _of_life(index, life, zero)
    ]
    return tuple(sorted(out, key=lambda c: (c.start, c.rank)))


def _of_life(index: int, life: RankRecord, zero: int) -> list[Compile]:
    """One for each graph: its backward part is compiled later, under the same number."""
    found: list[Compile] = []
    places: dict[str, int] = {}
    ahead = _compiled_ahead(life)
    for span in _graph_spans(life):
        number = str(span.fields.get("compile_id") or "")
        place = places.get(number) if span.fields.get("trigger") in BACKWARD_TRIGGERS else None
        if place is None or not number:
            places[number] = len(found)
            found.append(
                replace(_compile(index, life, span, zero), missed=_missed_precompile(span, ahead))
            )
            continue
        whole = found[place]
        cached = whole.cached and span.fields.get("cached") is not False
        later = whole.later + (span.end or span.start) - span.start
        found[place] = replace(whole, later=later, cached=cached)
    return found


def _compiled_ahead(life: RankRecord) -> dict[str, int]:
    """Places that were compiled ahead, and when that was done; none before a step was seen."""
    done = [
        (span.start, span.end)
        for span in life.journal.spans
        if span.fields.get("what") == AHEAD and span.end is not None
    ]
    if life.first_step_end is None:
        return {}
    return {
        str(span.fields["where"]): end
        for span in _graph_spans(life)
        for start, end in done
        if span.fields.get("where") and start <= span.start < end
    }


def _missed_precompile(span: Span, ahead: Mapping[str, int]) -> bool:
    """Whether the first step on a real batch compiles what was compiled ahead."""
    done = ahead.get(str(span.fields.get("where")))
    return done is not None and span.start >= done and span.fields.get("step") == 0


def _graph_spans(life: RankRecord) -> list[Span]:
    """The finished compiles; not those that a user has declared around torch's own."""
    spans = [s for s in life.journal.spans if s.name == "compile" and s.end is not None]
    own = [s for s in spans if s.fields.get("compile_id")]
    return [
        span
        for span in spans
        if span.fields.get("compile_id")
        or not any(span.start <= one.start < (span.end or 0) for one in own)
    ]


def _compile(index: int, life: RankRecord, span: Span, zero: int) -> Compile:
    fields, shift = span.fields, life.shift - zero
    started = life.first_step_end is not None and span.start + life.shift >= life.first_step_end
    reason, seen = str(fields.get("reason") or ""), fields.get("seen")
    return Compile(
        attempt=index,
        rank=life.rank,
        start=span.start + shift,
        end=(span.end or span.start) + shift,
        where=str(fields.get("where") or fields.get("compile_id") or "?"),
        trigger=str(fields.get("trigger") or ""),
        reason=reason or ("compiled after the first step" if started else ""),
        recompile=bool(reason) or started,
        cached=fields.get("cached") is True,
        caller=str(fields.get("caller") or ""),
        seen=seen if isinstance(seen, dict) else {},
    )


def recompile_limit_hits(
    drafts: Sequence[AttemptRecord], zero: int
) -> tuple[RecompileLimitHit, ...]:
    """Where torch has reached its limit of recompiles."""
    return tuple(
        RecompileLimitHit(
            attempt=index,
            rank=life.rank,
            at=event["t"] + life.shift - zero,
            where=str(event.get("where") or "?"),
            limit=str(event.get("limit") or "recompile_limit"),
            reason=str(event.get("reason") or ""),
        )
        for index, draft in enumerate(drafts)
        for life in draft.lives
        for event in life.journal.named("recompile_limit")
    )


def compiles_by_rank(
    drafts: Sequence[AttemptRecord], lived: Sequence[AttemptTimeline]
) -> tuple[RankCompiles, ...]:
    """What each rank's time in the compiler went to, and what its caches had."""
    found: dict[int, RankCompiles] = {}
    for draft, lives in zip(drafts, lived, strict=True):
        for life, account in zip(draft.lives, lives.lives, strict=True):
            one = _caches(life)
            parts = segments.time_by_bucket(split_compile_time(life, account.segments))
            if not parts and not one.asked:
                continue
            before = found.get(life.rank, RankCompiles(rank=life.rank))
            found[life.rank] = before.plus(replace(one, parts=parts))
    return tuple(found[rank] for rank in sorted(found))


def compile_parts(
    drafts: Sequence[AttemptRecord], lived: Sequence[AttemptTimeline]
) -> dict[str, int]:
    """What the run's own time in the compiler went to; it sums to those buckets, exactly.

    Where several ranks compile at an instant, the one that is done last in this attempt counts,
    unless another one is known to do something that all wait for.
    """
    sums: dict[str, int] = {}
    for draft, lives in zip(drafts, lived, strict=True):
        accounts = dict(zip(map(id, draft.lives), lives.lives, strict=True))
        ranks = [split_compile_time(life, accounts[id(life)].segments) for life in draft.trainers()]
        ranks.sort(key=lambda parts: -parts[-1].end if parts else 0)
        layers = [[part for part in parts if part.leaf != "other"] for parts in ranks]
        whole = [Segment(s.start, s.end, "other") for s in lives.segments if s.leaf in PT2]
        painted = segments.paint(whole, segments.by_priority(layers))
        for name, ns in segments.time_by_bucket(painted).items():
            sums[name] = sums.get(name, 0) + ns
    return sums


def split_compile_time(life: RankRecord, segments: Sequence[Segment]) -> list[Segment]:
    """This rank's time in the compiler, each piece with its part as the leaf."""
    whole = [Segment(s.start, s.end, "other") for s in segments if s.leaf in PT2]
    if not whole:
        return []
    spans = [s for s in life.journal.spans if s.end is not None]
    named = [Segment(s.start, s.end or 0, WHOLE[s.name]) for s in spans if s.name in WHOLE]
    inner = ledger_segments.innermost(named)
    layers = [inner, _graphs(_graph_spans(life), inner)]
    found = [
        Segment(s.start + life.shift, s.end + life.shift, s.leaf)
        for s in ledger_segments.by_priority(layers)
    ]
    return ledger_segments.paint(whole, found)


def _graphs(spans: Sequence[Span], inner: Sequence[Segment]) -> list[Segment]:
    """What torch measured of each compile, one part after the other in the time that it took.

    In which order they came is not known, and nothing depends on it.
    """
    out: list[Segment] = []
    at = 0
    for span in sorted(spans, key=lambda s: s.start):
        start, end = max(span.start, at), span.end or span.start
        if start >= end:
            continue  # within another one, of another thread
        at = end
        nested = sum(s.end - s.start for s in segments.clip(inner, start, end))
        room = end - start - nested
        for name, ns in _exclusive(span.fields, room, nested):
            start = _lay(out, inner, start, end, name, ns)
        _lay(out, inner, start, end, "other", end - start)
    return out


def _lay(
    out: list[Segment], inner: Sequence[Segment], start: int, end: int, name: str, ns: int
) -> int:
    """`ns` of a part from `start` on, around what is nested there; where it ends."""
    for one in segments.clip(inner, start, end):
        if ns <= 0:
            break
        piece = min(one.start - start, ns)
        if piece > 0:
            out.append(Segment(start, start + piece, name))
            ns -= piece
        start = start + piece if ns <= 0 else one.end
    if ns > 0:
        piece = min(ns, end - start)
        out.append(Segment(start, start + piece, name))
        start += piece
    return start


def _exclusive(fields: Mapping[str, Any], room: int, nested: int) -> Iterator[tuple[str, int]]:
    """Each part without those below it, cut to the room that there is.

    torch's times hold what is nested in them: imports, mostly, in the time of AOTAutograd.
    """
    told = fields.get("parts_us")
    us = {name: _ns(told.get(name)) for name in _BELOW} if isinstance(told, dict) else {}
    kernels, tuning = us.get("triton", 0) + us.get("cpp", 0), us.get("autotune", 0)
    inductor = max(us.get("inductor", 0), kernels + tuning)
    aot = max(us.get("aot_autograd", 0), inductor)
    dynamo = max(us.get("dynamo", 0), aot)
    own_aot = max(aot - inductor - nested, 0)
    found = {
        "dynamo": dynamo - aot,
        "cache_load" if _loaded_from_cache(fields) else "aot_autograd": own_aot,
        "inductor": inductor - kernels - tuning,
        "triton": us.get("triton", 0),
        "cpp": us.get("cpp", 0),
        "autotune": tuning,
    }
    for name, ns in found.items():
        piece = min(ns, room)
        room -= piece
        yield name, piece


_BELOW = ("dynamo", "aot_autograd", "inductor", "triton", "cpp", "autotune")


def _loaded_from_cache(fields: Mapping[str, Any]) -> bool:
    """Whether AOTAutograd's own cache had the graph: then its time was that of loading it."""
    hits, misses = _counts(fields.get("cache"), "aot")
    return bool(hits) and not misses


def _caches(life: RankRecord) -> RankCompiles:
    found = RankCompiles(rank=life.rank)
    for span in life.journal.spans:
        if span.name == "compile":
            fx, aot = (_counts(span.fields.get("cache"), name) for name in ("fx", "aot"))
            told = span.fields.get("bypassed")
            reasons = [str(text) for text in told] if isinstance(told, list) else []
            one = RankCompiles(rank=life.rank, fx=fx, aot=aot, bypassed=dict.fromkeys(reasons, 1))
            found = found.plus(one)
    return found


def _counts(told: Any, name: str) -> tuple[int, int]:
    pair = told.get(name) if isinstance(told, dict) else None
    if isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair):
        return pair[0], pair[1]
    return 0, 0


def _ns(us: Any) -> int:
    return us * 1000 if type(us) is int and 0 <= us < 1 << 50 else 0


def first_compiles(ledger: Ledger, attempt: int | None = None) -> list[Compile]:
    """Those that no recompile is, of one attempt or of all."""
    return [one for one in ledger.compiles if not one.recompile and attempt in (None, one.attempt)]
