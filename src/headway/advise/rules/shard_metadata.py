"""Ranks that tell each other one object at a time what one message could say."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import take_last
from headway.advise.model import Evidence, Proposal, Saving
from headway.advise.replay import buckets_of, time_in
from headway.ledger.leaves import START_STAGES, UNKNOWN
from headway.report.communication import is_installed_package
from headway.report.words import duration

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
