"""Each restart imports once more what the attempt before had imported."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from headway.advise.intervals import length, take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import time_in
from headway.ledger.leaves import EFFECTIVE, LOST
from headway.ledger.model import Ledger
from headway.report.hints import is_restartable, restart_flags
from headway.report.words import count, duration

LAUNCH_BUCKETS = ("recover.launcher_init",)


def propose_restart_warmth(evidence: Evidence) -> Iterator[Proposal]:
    """Each recovery's launch is brought down to what warm ones take."""
    ledger = evidence.ledger
    if evidence.warm:
        return
    prepared = _imports_ready_at(ledger)
    cold = [
        took
        for attempt in _restarted_attempts(ledger)
        if ledger.attempts[attempt - 1].end >= prepared
        and (took := time_in(ledger, LAUNCH_BUCKETS, attempt))
    ]
    if not cold:
        return
    known = [
        length(time_in(seen.ledger, LAUNCH_BUCKETS, attempt))
        for seen in evidence.others
        if seen.warm
        for attempt in _restarted_attempts(seen.ledger)
    ]
    left = round(statistics.median(known)) if known else 0
    told = (
        f"{count(len(cold), 'restart')} launched and imported for {duration(_total_length(cold))}; "
    )
    yield Proposal(
        title="Fork restarts with their imports done",
        cuts=tuple(Saving(take=take_last(took, length(took) - left)) for took in cold),
        confidence="high" if known else "low",
        why=told
        + (
            f"warm ones of this job took {duration(left)} each"
            if known
            else "at most: no warm restart is measured in this job"
        ),
        flags=(*restart_flags(ledger), "--warm"),
        see="docs/warm.md",
    )


def _imports_ready_at(ledger: Ledger) -> int:
    """When everything could have been imported once more, beside the first training."""
    trained = time_in(ledger, (EFFECTIVE, LOST))
    imports = length(time_in(ledger, ("start.launcher_init",)))
    return trained[0][0] + imports if trained else ledger.wall


def _restarted_attempts(ledger: Ledger) -> list[int]:
    """Attempts after a failure that may be followed by another one where the job is."""
    after = {one.attempt + 1 for one in ledger.failures if is_restartable(one)}
    return [index for index in range(1, len(ledger.attempts)) if index in after]


def _total_length(parts: list[tuple[tuple[int, int], ...]]) -> int:
    return sum(map(length, parts))
