"""The training stands still while a checkpoint is written."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from headway.advise.intervals import Intervals, first, length, union, without
from headway.advise.model import Confidence, Cut, Evidence, Proposal
from headway.advise.replay import spent
from headway.report.words import count, duration

BLOCK = ("waste.checkpoint_block",)


class Left(NamedTuple):
    """What a save still blocks once it is written behind."""

    ns: int
    confidence: Confidence
    why: str


def proposals(evidence: Evidence) -> Iterator[Proposal]:
    """Every save that blocked longer is brought down to what one written behind takes."""
    ledger = evidence.ledger
    blocked = spent(ledger, BLOCK)
    if not blocked or ledger.saved or (ledger.behind and ledger.behind.saves):
        return
    left = _left(evidence)
    saves = ledger.saves or len(blocked)
    yield Proposal(
        title="Write checkpoints behind the training",
        cuts=(Cut(take=_beyond(blocked, left.ns * saves // len(blocked))),),
        confidence=left.confidence,
        why=f"{count(saves, 'save')} blocked {duration(length(blocked) // saves)} each; {left.why}",
        flags=("--async-save",),
        code=(
            'checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)  # or this one',
        ),
        see="docs/async-save.md",
    )


def _beyond(blocked: Intervals, ns: int) -> Intervals:
    """Each stretch without so much of its beginning."""
    return without(blocked, union(*(first((one,), ns) for one in blocked)))


def _left(evidence: Evidence) -> Left:
    """As other runs of this job have measured it."""
    found = []
    for seen in evidence.others:
        behind = seen.ledger.behind
        blocked = length(spent(seen.ledger, BLOCK))
        if seen.ledger.saves and (seen.ledger.saved or (behind and behind.saves)):
            waited = behind.waited // max(len(seen.ledger.ranks), 1) if behind else 0
            found.append((blocked + waited) // seen.ledger.saves)
    if found:
        ns = round(statistics.median(found))
        return Left(ns, "high", f"one written behind blocks {duration(ns)} in this job")
    told = "at most: what the copy in memory takes is not measured in this job"
    return Left(0, "low", told)
