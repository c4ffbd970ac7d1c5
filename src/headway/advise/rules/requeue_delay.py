"""Time from a death to the next life that a launcher on the spot does not need."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from headway.advise.intervals import Intervals, length, take_last, union
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.ledger.leaves import DETECTION, DOWNTIME
from headway.ledger.model import Failure, Ledger
from headway.report.hints import is_restartable, restart_flags
from headway.report.words import count, duration

GAP_BUCKETS = (DOWNTIME, "recover.scheduling", "recover.hardware_setup")


def propose_requeue_delay(evidence: Evidence) -> Iterator[Proposal]:
    """Each interruption that Headway may end, brought down to what its own restarts take."""
    ledger = evidence.ledger
    slow = [one for one in ledger.failures if is_restartable(one) and not _by_headway(one)]
    gaps = [gap for one in slow if (gap := gap_after(ledger, one))]
    if not gaps:
        return
    known = [
        length(gap_after(seen.ledger, one))
        for seen in evidence.all
        for one in seen.ledger.failures
        if _by_headway(one) and one.attempt + 1 < len(seen.ledger.attempts)
    ]
    left = round(statistics.median(known)) if known else 0
    told = f"{count(len(gaps), 'time')} {duration(sum(map(length, gaps)))} went by between a death "
    told += "and the next attempt; "
    yield Proposal(
        title="Start again where the job is, as soon as it dies",
        cuts=tuple(Saving(take=take_last(gap, length(gap) - left)) for gap in gaps),
        confidence="high" if known else "low",
        why=told
        + (
            f"restarts by Headway took {duration(left)} in this job"
            if known
            else "at most: no restart by Headway is measured in this job"
        ),
        flags=restart_flags(ledger),
        see="docs/recover.md",
    )


def gap_after(ledger: Ledger, failure: Failure) -> Intervals:
    """From the death that a failure is to the attempt after it."""
    after = failure.attempt + 1
    if after >= len(ledger.attempts):
        return ()
    return union(
        time_in(ledger, (DETECTION, DOWNTIME), failure.attempt), time_in(ledger, GAP_BUCKETS, after)
    )


def _by_headway(failure: Failure) -> bool:
    return (failure.decision or "").startswith("restart")
