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
    trained = length(time_in(ledger, (EFFECTIVE, LOST)))
    if not stalls or not trained:
        return
    share = length(stalls) / trained
    others = [_stall_share(seen.ledger) for seen in evidence.others]
    known = [one for one in others if one is not None and one < share / 2]
    left = round(min(known, default=0.0) * trained)
    # A loader that makes a batch in the wait of a step needs so many of itself to keep up.
    workers = max(1, math.ceil(share))
    confidence: Confidence = "medium" if known else "low"
    told = f"for every second of training {duration(round(share * 1e9))} went by waiting for data"
    if known:
        told += f"; another run of this job waited {percent(100 * min(known))} of its training"
    else:
        told += "; at most: that the machine has the cores for it is not measured"
    yield Proposal(
        title=f"Give the loader {count(workers, 'worker')} more, or let it read further ahead",
        cuts=(Saving(take=take_last(stalls, length(stalls) - left)),),
        confidence=confidence,
        why=told,
        code=(f"DataLoader(..., num_workers=now + {workers}, prefetch_factor=4)",),
        see="docs/techniques/data-workers.md",
    )


def _stall_share(ledger: Ledger) -> float | None:
    """Waiting over training, where it trained."""
    trained = length(time_in(ledger, (EFFECTIVE, LOST)))
    return length(time_in(ledger, STALL)) / trained if trained else None
