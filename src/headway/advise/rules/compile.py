"""Rules for torch.compile: compile cache, autotune pruning and recompiles."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from headway.advise.model import Confidence, Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.compile.recompiles.advice import Cause
from headway.compile.recompiles.kinds import KINDS
from headway.format import count, duration
from headway.ledger.compiles import first_compiles
from headway.ledger.model import Ledger
from headway.ledger.segments import length, take_last
from headway.report.compiles import recompile_causes
from headway.units import NS

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


TUNING_BUCKETS = (*buckets_of("pt2_compile"), "waste.recompile")


def propose_autotune_pruning(evidence: Evidence) -> Iterator[Proposal]:
    """What tuning took, less what the kept configs will take, as `headway autotune` says."""
    tuning = evidence.tuning
    if tuning is None or tuning.spent <= tuning.left:
        return
    during = time_in(evidence.ledger, TUNING_BUCKETS)
    ns = min(round((tuning.spent - tuning.left) * NS), length(during))
    yield Proposal(
        title="Tune only the configs that were ever the best",
        cuts=(Saving(take=take_last(during, ns)),),
        confidence="medium",
        why=f"tuning {count(tuning.kernels, 'kernel')} took {tuning.spent:.2f} s in the busiest "
        f"process, and the kept configs will take {tuning.left:.2f} s",
        flags=("--autotune", evidence.where),
        code=(f"headway autotune {evidence.where}  # first: writes the file",),
        see="docs/autotune.md",
    )


RECOMPILE_BUCKETS = (*buckets_of("pt2_compile"), "waste.recompile")


def propose_dynamic_sources(evidence: Evidence) -> Iterator[Proposal]:
    """Every recompile that a setting of torch cures, in each attempt."""
    ledger = evidence.ledger
    cuts, curable = [], []
    for attempt in ledger.attempts:
        found = [one for one in _recompile_causes(ledger, attempt.index) if KINDS[one.kind].marked]
        during = time_in(ledger, RECOMPILE_BUCKETS, attempt.index)
        if found and during:
            cuts.append(Saving(take=take_last(during, sum(one.ns for one in found))))
            curable += found
    if not cuts:
        return
    worst = max(curable, key=lambda one: one.ns)
    again = sum(one.times for one in curable)
    others = [length(time_in(one.ledger, ("waste.recompile",))) for one in evidence.others]
    here = length(time_in(ledger, ("waste.recompile",)))
    cured = any(other < here // 2 for other in others)
    yield Proposal(
        title="Compile what changes as dynamic from the start",
        cuts=tuple(cuts),
        confidence="high" if cured else "medium",
        why=f"{count(again, 'recompile')} of what a setting of torch cures, most for "
        f"{worst.source or worst.where} ({duration(worst.ns)}); "
        + ("another run did without" if cured else "that torch takes it is not measured")
        + ". The first run with it learns, the next one gains",
        flags=("--learn",),
        code=(f"headway recompiles {evidence.where} --verify  # tries it on the first steps",),
        see="docs/recompiles.md",
    )


def _recompile_causes(ledger: Ledger, attempt: int) -> list[Cause]:
    again = [one for one in ledger.compiles if one.recompile and not one.missed]
    return list(recompile_causes([one for one in again if one.attempt == attempt]))
