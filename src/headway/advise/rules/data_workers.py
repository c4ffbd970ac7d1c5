"""Steps that wait for the next batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headway.advise.intervals import last, length
from headway.advise.model import Confidence, Cut, Evidence, Proposal
from headway.advise.replay import spent
from headway.ledger.leaves import EFFECTIVE, LOST
from headway.ledger.model import Ledger
from headway.report.words import count, duration, percent

STALL = ("waste.data_stall",)


def proposals(evidence: Evidence) -> Iterator[Proposal]:
    """Down to the share of waiting that another run of this job had, or to none at all."""
    ledger = evidence.ledger
    stalls = spent(ledger, STALL)
    trained = length(spent(ledger, (EFFECTIVE, LOST)))
    if not stalls or not trained:
        return
    share = length(stalls) / trained
    others = [_share(seen.ledger) for seen in evidence.others]
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
        cuts=(Cut(take=last(stalls, length(stalls) - left)),),
        confidence=confidence,
        why=told,
        code=(f"DataLoader(..., num_workers=now + {workers}, prefetch_factor=4)",),
        see="docs/techniques/data-workers.md",
    )


def _share(ledger: Ledger) -> float | None:
    """Waiting over training, where it trained."""
    trained = length(spent(ledger, (EFFECTIVE, LOST)))
    return length(spent(ledger, STALL)) / trained if trained else None
