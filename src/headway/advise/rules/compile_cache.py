"""Code that an earlier run of the job has compiled already, or a later one will."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from headway.advise.intervals import length, take_last
from headway.advise.model import Confidence, Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.ledger.model import Ledger
from headway.report.findings import first_compiles
from headway.report.words import duration

COMPILE_BUCKETS = buckets_of("pt2_compile")
# Dynamo traces and modules are imported whatever a cache holds.
CACHED_PARTS = ("aot_autograd", "inductor", "triton", "autotune")


class RemainingCompileTime(NamedTuple):
    """What a start still takes in the compiler once its code is kept, as far as that is known."""

    ns: int | None
    confidence: Confidence
    why: str


def propose_compile_cache(evidence: Evidence) -> Iterator[Proposal]:
    """Each start that compiled is brought down to what one with a cache takes."""
    ledger = evidence.ledger
    cold = [attempt.index for attempt in ledger.attempts if _is_cold(ledger, attempt.index)]
    if not cold or ledger.archives:
        return
    left = _remaining_compile_time(evidence)
    cuts = []
    for attempt in cold:
        took = time_in(ledger, COMPILE_BUCKETS, attempt)
        ns = (
            _cacheable_time(ledger, attempt, length(took))
            if left.ns is None
            else length(took) - left.ns
        )
        cuts.append(Saving(take=take_last(took, max(ns, 0))))
    yield Proposal(
        title="Keep what torch.compile makes, for the next run and for other nodes",
        cuts=tuple(cuts),
        confidence=left.confidence,
        why=f"{left.why}; the first run with it fills the store",
        flags=("--compile-cache", "compile-cache"),
        see="docs/compile-cache.md",
    )


def _cached_flags(ledger: Ledger, attempt: int) -> list[bool]:
    """Of every first compile of an attempt, whether a cache had it."""
    return [one.cached for one in first_compiles(ledger, attempt)]


def _is_cold(ledger: Ledger, attempt: int) -> bool:
    first = _cached_flags(ledger, attempt)
    return bool(first) and not all(first)


def _remaining_compile_time(evidence: Evidence) -> RemainingCompileTime:
    """As starts with a full cache took; else by what this run's compiles were made of."""
    archived, local = [], []
    for seen in evidence.all:
        hits = {one.attempt for one in seen.ledger.archives if one.level in ("exact", "job")}
        for attempt in seen.ledger.attempts:
            first = _cached_flags(seen.ledger, attempt.index)
            took = length(time_in(seen.ledger, COMPILE_BUCKETS, attempt.index))
            if attempt.index in hits and first:
                archived.append(took)
            elif first and all(first):
                local.append(took)
    if archived:
        ns = round(statistics.median(archived))
        return RemainingCompileTime(
            ns, "high", f"starts of this job with a compile cache took {duration(ns)}"
        )
    if local:
        ns = round(statistics.median(local))
        why = f"starts of this job that found torch's own cache filled took {duration(ns)}"
        return RemainingCompileTime(ns, "medium", f"{why}; one from an archive is not measured")
    if evidence.ledger.compile_parts:
        told = "what the compiler's own parts took here that a cache holds; tracing is left"
        return RemainingCompileTime(None, "medium", f"{told}. No start with a cache is measured")
    return RemainingCompileTime(
        None, "low", "at most: what a start with a cache takes is not measured"
    )


def _cacheable_time(ledger: Ledger, attempt: int, took: int) -> int:
    """Of one start: the share that a cache holds of all that the run compiled."""
    parts = ledger.compile_parts
    total = sum(parts.values())
    if total:
        return took * sum(parts.get(name, 0) for name in CACHED_PARTS) // total
    by_rank: dict[int, int] = {}
    for one in ledger.compiles:
        if one.attempt == attempt and not one.recompile and not one.cached:
            by_rank[one.rank] = by_rank.get(one.rank, 0) + one.ns
    return min(max(by_rank.values(), default=0), took)
