"""Ranks that tell each other one object at a time what one message could say."""

from __future__ import annotations

from collections.abc import Iterator

from headway.advise.intervals import last
from headway.advise.model import Cut, Evidence, Proposal
from headway.advise.replay import leaves_of, spent
from headway.ledger.leaves import START_STAGES, UNKNOWN
from headway.report.communication import is_installed
from headway.report.words import duration

OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
STARTS = leaves_of(*START_STAGES[3:])


def proposals(evidence: Evidence) -> Iterator[Proposal]:
    """All but one of the calls of a place, on the rank that waited least in them."""
    ledger = evidence.ledger
    own = [one for one in ledger.early_calls if not is_installed(one.where)]
    many = [one for one in own if one.what in OBJECTS and one.times > 1]
    if not many:
        return
    ns = sum(one.least - one.least // one.times for one in many)
    place = max(many, key=lambda one: one.least)
    yield Proposal(
        title=f"Send shard metadata once, not {place.times:,} times ({place.where})",
        cuts=(Cut(take=last(spent(ledger, (*STARTS, UNKNOWN)), ns)),),
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
