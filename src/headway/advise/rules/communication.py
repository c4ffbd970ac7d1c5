"""Rules for communication before the first step: process groups and shard metadata."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.format import count, duration
from headway.ledger.buckets import UNKNOWN
from headway.ledger.communication import is_installed_package
from headway.ledger.segments import take_last
from headway.taxonomy import START_STAGES

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
            'mesh = headway.startup.process_groups.partition({"dp": 4, "tp": 2})  # your own shape',
            'mesh["tp"].pg()  # made here, at its first use',
        ),
        see="docs/groups.md",
    )


OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
START_BUCKETS = buckets_of(*START_STAGES[3:])


def propose_shard_metadata(evidence: Evidence) -> Iterator[Proposal]:
    """All but one of the calls of a place, on the rank that waited least in them."""
    ledger = evidence.ledger
    own = [one for one in ledger.early_calls if not is_installed_package(one.where)]
    many = [one for one in own if one.what in OBJECT_COLLECTIVES and one.times > 1]
    if not many:
        return
    ns = sum(one.least - one.least // one.times for one in many)
    place = max(many, key=lambda one: one.least)
    yield Proposal(
        title=f"Send shard metadata once, not {place.times:,} times ({place.where})",
        cuts=(Saving(take=take_last(time_in(ledger, (*START_BUCKETS, UNKNOWN)), ns)),),
        confidence="medium",
        why=f"{place.times:,} x {place.what} before the first step; all but one took "
        f"{duration(ns)} on the rank that waited least",
        code=(
            "plan = headway.startup.sharding.share("
            "lambda: headway.startup.sharding.plan(tables, ranks), tables)",
            "weights = headway.startup.sharding.sharded_tensors(plan, local)",
        ),
        see="docs/sharding.md",
    )
