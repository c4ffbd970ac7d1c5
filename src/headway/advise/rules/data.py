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
    """Reduce waiting to the share of another run of this job, or to zero."""
    ledger = evidence.ledger
    stalls = time_in(ledger, STALL)
    training = length(time_in(ledger, (EFFECTIVE, LOST)))
    if not stalls or not training:
        return
    share = length(stalls) / training
    others = [_stall_share(run.ledger) for run in evidence.others]
    lower = [other for other in others if other is not None and other < share / 2]
    remaining = round(min(lower, default=0.0) * training)
    # A loader that takes `share` times as long as a step needs so many additional workers.
    workers = max(1, math.ceil(share))
    confidence: Confidence = "medium" if lower else "low"
    reason = f"{duration(round(share * 1e9))} of waiting for data per second of training"
    if lower:
        reason += f"; another run of this job waited {percent(100 * min(lower))} of that time"
    else:
        reason += "; upper bound: assumes that enough CPU cores are free"
    yield Proposal(
        title=f"Add {count(workers, 'worker')} to the data loader, or prefetch more batches",
        savings=(Saving(intervals=take_last(stalls, length(stalls) - remaining)),),
        confidence=confidence,
        why=reason,
        code=(f"DataLoader(..., num_workers=now + {workers}, prefetch_factor=4)",),
        see="docs/techniques/data-workers.md",
    )


def _stall_share(ledger: Ledger) -> float | None:
    """Waiting time divided by training time."""
    training = length(time_in(ledger, (EFFECTIVE, LOST)))
    return length(time_in(ledger, STALL)) / training if training else None
