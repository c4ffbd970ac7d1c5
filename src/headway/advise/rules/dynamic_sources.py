"""Code that is compiled again because a size or an integer has changed."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import length, take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.compile.recompiles.advice import Cause
from headway.compile.recompiles.kinds import KINDS
from headway.ledger.model import Ledger
from headway.report.ahead import recompile_causes
from headway.report.words import count, duration

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
