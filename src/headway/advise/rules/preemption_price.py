"""Training that is lost when a scheduler takes the machines, although it gives notice."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headway.advise.intervals import length, take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.ledger.leaves import LOST
from headway.ledger.model import NS, Ledger
from headway.report.words import count, duration
from headway.schedule.cost import from_ledger

NOTICE_S = 30  # what Slurm gives unless told otherwise; a longer save asks for more


def propose_preemption_price(evidence: Evidence) -> Iterator[Proposal]:
    """Each preempted attempt loses no more than the save that its notice leaves time for."""
    ledger = evidence.ledger
    price = from_ledger(ledger)
    rolled = [
        lost for attempt in _evicted_attempts(ledger) if (lost := time_in(ledger, (LOST,), attempt))
    ]
    if not rolled:
        return
    left = round((price.save or 0.0) * NS)
    grace = max(NOTICE_S, math.ceil(price.save or 0.0))
    total = sum(map(length, rolled))
    told = f"{count(len(rolled), 'eviction')} rolled back {duration(total)}; "
    told += f"one more now would cost {price.lost:,.0f} accelerator-seconds; "
    yield Proposal(
        title="Save at the notice of an eviction",
        cuts=tuple(Saving(take=take_last(lost, length(lost) - left)) for lost in rolled),
        confidence="medium" if price.save is not None else "low",
        why=told
        + (
            f"95 % of this run's saves are safe after {duration(left)}"
            if price.save is not None
            else "at most: what a save takes is not measured in this run"
        ),
        code=(
            f"checkpointer = Checkpointer(store, state, interval=600, grace_s={grace})",
            "if checkpointer.preempted: break  # in the loop, after due() and save()",
        ),
        see="docs/checkpoint.md#preemption",
    )


def _evicted_attempts(ledger: Ledger) -> set[int]:
    by_scheduler = {one.attempt for one in ledger.failures if one.owner == "scheduler"}
    return by_scheduler | {one.index for one in ledger.attempts if one.outcome == "preempted"}
