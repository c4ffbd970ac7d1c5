"""Rule for training steps that wait for data."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headway.advise.model import Confidence, Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.format import count, duration, percent
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import Ledger
from headway.ledger.segments import length, take_last

STALL = ("waste.data_stall",)


def propose_data_workers(evidence: Evidence) -> Iterator[Proposal]:
    """Down to the share of waiting that another run of this job had, or to none at all."""
    ledger = evidence.ledger
    stalls = time_in(ledger, STALL)
    training = length(time_in(ledger, (EFFECTIVE, LOST)))
    if not stalls or not training:
        return
    share = length(stalls) / training
    others = [_stall_share(run.ledger) for run in evidence.others]
    lower = [other for other in others if other is not None and other < share / 2]
    remaining = round(min(lower, default=0.0) * training)
    # A loader that makes a batch in the wait of a step needs so many of itself to keep up.
    workers = max(1, math.ceil(share))
    confidence: Confidence = "medium" if lower else "low"
    reason = f"for every second of training {duration(round(share * 1e9))} went by waiting for data"
    if lower:
        reason += f"; another run of this job waited {percent(100 * min(lower))} of its training"
    else:
        reason += "; at most: that the machine has the cores for it is not measured"
    yield Proposal(
        title=f"Give the loader {count(workers, 'worker')} more, or let it read further ahead",
        savings=(Saving(intervals=take_last(stalls, length(stalls) - remaining)),),
        confidence=confidence,
        why=reason,
        code=(f"DataLoader(..., num_workers=now + {workers}, prefetch_factor=4)",),
        see="docs/techniques/data-workers.md",
    )


def _stall_share(ledger: Ledger) -> float | None:
    """Waiting over training, where it trained."""
    training = length(time_in(ledger, (EFFECTIVE, LOST)))
    return length(time_in(ledger, STALL)) / training if training else None
