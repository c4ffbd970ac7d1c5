"""The training stands still while a checkpoint is written."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from headway.advise.intervals import Intervals, length, subtract, take_first, union
from headway.advise.model import Confidence, Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.report.words import count, duration

BLOCK_BUCKETS = ("waste.checkpoint_block",)


class RemainingSaveTime(NamedTuple):
    """What a save still blocks once it is written behind."""

    ns: int
    confidence: Confidence
    why: str


def propose_async_checkpoint(evidence: Evidence) -> Iterator[Proposal]:
    """Every save that blocked longer is brought down to what one written behind takes."""
    ledger = evidence.ledger
    blocked = time_in(ledger, BLOCK_BUCKETS)
    if not blocked or ledger.saved or (ledger.behind and ledger.behind.saves):
        return
    left = _remaining_save_time(evidence)
    saves = ledger.saves or len(blocked)
    yield Proposal(
        title="Write checkpoints behind the training",
        cuts=(Saving(take=_after_first(blocked, left.ns * saves // len(blocked))),),
        confidence=left.confidence,
        why=f"{count(saves, 'save')} blocked {duration(length(blocked) // saves)} each; {left.why}",
        flags=("--async-save",),
        code=(
            'checkpointer = headway.checkpoint.Checkpointer("checkpoints", state)  # or this one',
        ),
        see="docs/async-save.md",
    )


def _after_first(blocked: Intervals, ns: int) -> Intervals:
    """Each stretch without so much of its beginning."""
    return subtract(blocked, union(*(take_first((one,), ns) for one in blocked)))


def _remaining_save_time(evidence: Evidence) -> RemainingSaveTime:
    """As other runs of this job have measured it."""
    found = []
    for seen in evidence.others:
        behind = seen.ledger.behind
        blocked = length(time_in(seen.ledger, BLOCK_BUCKETS))
        if seen.ledger.saves and (seen.ledger.saved or (behind and behind.saves)):
            waited = behind.waited // max(len(seen.ledger.ranks), 1) if behind else 0
            found.append((blocked + waited) // seen.ledger.saves)
    if found:
        ns = round(statistics.median(found))
        return RemainingSaveTime(
            ns, "high", f"one written behind blocks {duration(ns)} in this job"
        )
    told = "at most: what the copy in memory takes is not measured in this job"
    return RemainingSaveTime(0, "low", told)
