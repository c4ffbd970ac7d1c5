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
# A cache does not save tracing by Dynamo and the import of modules.
CACHED_PARTS = ("aot_autograd", "inductor", "triton", "autotune")
TUNING_BUCKETS = (*buckets_of("pt2_compile"), "waste.recompile")
RECOMPILE_BUCKETS = (*buckets_of("pt2_compile"), "waste.recompile")


class RemainingCompileTime(NamedTuple):
    """The compile time of a start with a filled cache, if known."""

    ns: int | None
    confidence: Confidence
    why: str


def propose_compile_cache(evidence: Evidence) -> Iterator[Proposal]:
    """Shorten each cold start to the compile time of a start with a cache."""
    ledger = evidence.ledger
    cold = [attempt.index for attempt in ledger.attempts if _is_cold(ledger, attempt.index)]
    if not cold or ledger.archives:
        return
    remaining = _remaining_compile_time(evidence)
    savings = []
    for attempt in cold:
        compiling = time_in(ledger, COMPILE_BUCKETS, attempt)
        ns = (
            _cacheable_time(ledger, attempt, length(compiling))
            if remaining.ns is None
            else length(compiling) - remaining.ns
        )
        savings.append(Saving(intervals=take_last(compiling, max(ns, 0))))
    yield Proposal(
        title="Cache the results of torch.compile for later runs and other nodes",
        savings=tuple(savings),
        confidence=remaining.confidence,
        why=f"{remaining.why}; the first run fills the cache",
        flags=("--compile-cache", "compile-cache"),
        see="docs/compile-cache.md",
    )


def _cached_flags(ledger: Ledger, attempt: int) -> list[bool]:
    """For each first compile of an attempt, whether it came from a cache."""
    return [compile_.cached for compile_ in first_compiles(ledger, attempt)]


def _is_cold(ledger: Ledger, attempt: int) -> bool:
    first = _cached_flags(ledger, attempt)
    return bool(first) and not all(first)


def _remaining_compile_time(evidence: Evidence) -> RemainingCompileTime:
    """From starts with a full cache; else from the compiler phases of this run."""
    archived, local = [], []
    for run in evidence.all_runs:
        hits = {
            archive.attempt for archive in run.ledger.archives if archive.level in ("exact", "job")
        }
        for attempt in run.ledger.attempts:
            first = _cached_flags(run.ledger, attempt.index)
            compiling = length(time_in(run.ledger, COMPILE_BUCKETS, attempt.index))
            if attempt.index in hits and first:
                archived.append(compiling)
            elif first and all(first):
                local.append(compiling)
    if archived:
        ns = round(statistics.median(archived))
        return RemainingCompileTime(
            ns, "high", f"starts of this job with a compile cache took {duration(ns)}"
        )
    if local:
        ns = round(statistics.median(local))
        why = f"starts of this job with a filled local torch cache took {duration(ns)}"
        return RemainingCompileTime(ns, "medium", f"{why}; loading an archive is not measured")
    if evidence.ledger.compile_parts:
        reason = "from the compiler phases of this run that a cache saves; tracing remains"
        return RemainingCompileTime(None, "medium", f"{reason}. No start with a cache is measured")
    return RemainingCompileTime(None, "low", "upper bound: a start with a cache is not measured")


def _cacheable_time(ledger: Ledger, attempt: int, compiling: int) -> int:
    """The part of a start's compile time that a cache saves."""
    parts = ledger.compile_parts
    total = sum(parts.values())
    if total:
        return compiling * sum(parts.get(name, 0) for name in CACHED_PARTS) // total
    by_rank: dict[int, int] = {}
    for compile_ in ledger.compiles:
        if compile_.attempt == attempt and not compile_.recompile and not compile_.cached:
            by_rank[compile_.rank] = by_rank.get(compile_.rank, 0) + compile_.ns
    return min(max(by_rank.values(), default=0), compiling)


def propose_autotune_pruning(evidence: Evidence) -> Iterator[Proposal]:
    """The tuning time minus the prediction of `headway autotune`."""
    tuning = evidence.tuning
    if tuning is None or tuning.time_s <= tuning.remaining_s:
        return
    during = time_in(evidence.ledger, TUNING_BUCKETS)
    ns = min(round((tuning.time_s - tuning.remaining_s) * NS), length(during))
    yield Proposal(
        title="Autotune only the configs that have been the best before",
        savings=(Saving(intervals=take_last(during, ns)),),
        confidence="medium",
        why=f"tuning {count(tuning.kernels, 'kernel')} took {tuning.time_s:.2f} s in the busiest "
        f"process; the remaining configs will take {tuning.remaining_s:.2f} s",
        flags=("--autotune", evidence.where),
        code=(f"headway autotune {evidence.where}  # run this first: it writes the file",),
        see="docs/autotune.md",
    )


def propose_dynamic_sources(evidence: Evidence) -> Iterator[Proposal]:
    """Every recompile that a setting of torch avoids, in each attempt."""
    ledger = evidence.ledger
    savings, curable = [], []
    for attempt in ledger.attempts:
        causes = [
            cause for cause in _recompile_causes(ledger, attempt.index) if KINDS[cause.kind].marked
        ]
        during = time_in(ledger, RECOMPILE_BUCKETS, attempt.index)
        if causes and during:
            savings.append(Saving(intervals=take_last(during, sum(cause.ns for cause in causes))))
            curable += causes
    if not savings:
        return
    worst = max(curable, key=lambda cause: cause.ns)
    recompiles = sum(cause.count for cause in curable)
    others = [length(time_in(run.ledger, ("waste.recompile",))) for run in evidence.others]
    recompiling = length(time_in(ledger, ("waste.recompile",)))
    avoided = any(other < recompiling // 2 for other in others)
    yield Proposal(
        title="Compile changing values as dynamic from the start",
        savings=tuple(savings),
        confidence="high" if avoided else "medium",
        why=f"{count(recompiles, 'recompile')} that a setting of torch avoids, most time for "
        f"{worst.source or worst.where} ({duration(worst.ns)}); "
        + ("another run avoided them" if avoided else "the effect is not measured")
        + ". The first run learns, later runs gain",
        flags=("--learn",),
        code=(f"headway recompiles {evidence.where} --verify  # tries it on the first steps",),
        see="docs/recompiles.md",
    )


def _recompile_causes(ledger: Ledger, attempt: int) -> list[Cause]:
    recompiles = [
        compile_
        for compile_ in ledger.compiles
        if compile_.recompile and not compile_.missed_precompile
    ]
    return list(
        recompile_causes([compile_ for compile_ in recompiles if compile_.attempt == attempt])
    )
