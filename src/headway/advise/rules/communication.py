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
OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
START_BUCKETS = buckets_of(*START_STAGES[3:])


def propose_process_groups(evidence: Evidence) -> Iterator[Proposal]:
    """Avoidable time on the rank that lost least."""
    created = evidence.ledger.process_groups
    avoidable = [
        group for group in created if group.avoidable and not is_installed_package(group.where)
    ]
    if not avoidable:
        return
    ns = sum(group.avoidable for group in avoidable)
    calls = sum(group.calls for group in avoidable)
    complete = all(group.complete for group in avoidable)
    yield Proposal(
        title=f"Create only the process groups that are used ({avoidable[0].where})",
        savings=(Saving(intervals=take_last(time_in(evidence.ledger, GROUP_BUCKETS), ns)),),
        confidence="medium" if complete else "low",
        why=f"{duration(ns)} of {count(calls, 'call')} per rank were spent on groups of other "
        "ranks, unused or duplicate groups, estimated from the times of the calls"
        + ("" if complete else "; not every rank finished"),
        code=(
            'mesh = headway.startup.process_groups.partition({"dp": 4, "tp": 2})  # your own shape',
            'mesh["tp"].pg()  # created on first use',
        ),
        see="docs/groups.md",
    )


def propose_shard_metadata(evidence: Evidence) -> Iterator[Proposal]:
    """All but one of the calls at a place, on the rank that waited least."""
    ledger = evidence.ledger
    own = [call for call in ledger.pre_step_collectives if not is_installed_package(call.where)]
    repeated = [call for call in own if call.what in OBJECT_COLLECTIVES and call.times > 1]
    if not repeated:
        return
    ns = sum(call.min_time - call.min_time // call.times for call in repeated)
    place = max(repeated, key=lambda call: call.min_time)
    yield Proposal(
        title=f"Send shard metadata once, not {place.times:,} times ({place.where})",
        savings=(Saving(intervals=take_last(time_in(ledger, (*START_BUCKETS, UNKNOWN)), ns)),),
        confidence="medium",
        why=f"{place.times:,} x {place.what} before the first step; all but one call took "
        f"{duration(ns)} on the rank that waited least",
        code=(
            "plan = headway.startup.sharding.share("
            "lambda: headway.startup.sharding.plan(tables, ranks), tables)",
            "weights = headway.startup.sharding.sharded_tensors(plan, local)",
        ),
        see="docs/sharding.md",
    )
