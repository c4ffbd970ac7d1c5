"""Process groups that no rank needed."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.report.communication import is_installed_package
from headway.report.words import count, duration

GROUP_BUCKETS = (*buckets_of("process_group_init"), "waste.blocked")


def propose_process_groups(evidence: Evidence) -> Iterator[Proposal]:
    """What the rank that lost least by it could do without."""
    made = evidence.ledger.groups_made
    needless = [one for one in made if one.needless and not is_installed_package(one.where)]
    if not needless:
        return
    ns = sum(one.needless for one in needless)
    calls = sum(one.calls for one in needless)
    settled = all(one.settled for one in needless)
    yield Proposal(
        title=f"Make only the process groups that are used ({needless[0].where})",
        cuts=(Saving(take=take_last(time_in(evidence.ledger, GROUP_BUCKETS), ns)),),
        confidence="medium" if settled else "low",
        why=f"of {count(calls, 'call')} a rank {duration(ns)} went to groups of other ranks, "
        "unused or repeated ones: an estimate from the times of the calls"
        + ("" if settled else ", and not every rank came to its end"),
        code=(
            'mesh = headway.startup.groups.partition({"dp": 4, "tp": 2})  # your own shape',
            'mesh["tp"].pg()  # made here, at its first use',
        ),
        see="docs/groups.md",
    )
