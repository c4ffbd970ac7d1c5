"""Combine proposals: no second is counted twice, and only lost time is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.advise.model import CONFIDENCES, Advice, AdviceReport, Proposal
from headway.advise.replay import accelerator_ns, lost_time, replay
from headway.ledger.model import Ledger
from headway.ledger.segments import (
    Intervals,
    intersect,
    length,
    subtract,
    take_first,
    union,
    union_of_two,
)

MIN_GAIN_NS = 1_000_000  # smaller gains are not reported


def resolve(
    ledger: Ledger, proposals: Sequence[tuple[str, Proposal]], notes: Sequence[str] = ()
) -> AdviceReport:
    """Assign time that two proposals claim to the more certain one, then to the larger one."""
    losses = lost_time(ledger)
    standalone = {id(proposal): _claim(proposal, losses, ())[0] for _, proposal in proposals}
    ordered = sorted(
        proposals,
        key=lambda pair: (
            CONFIDENCES.index(pair[1].confidence),
            -length(standalone[id(pair[1])]),
            pair[0],
        ),
    )
    used: Intervals = ()
    advice = []
    for rule, proposal in ordered:
        gained, used_after = _claim(proposal, losses, used)
        if length(gained) < MIN_GAIN_NS:
            gained, used_after = (), used
        used = used_after
        advice.append(_advice(ledger, rule, proposal, standalone[id(proposal)], gained))
    useful = sorted(
        (item for item in advice if item.marginal), key=lambda item: (-item.marginal, item.rule)
    )
    superseded = [item for item in advice if not item.marginal and item.standalone >= MIN_GAIN_NS]
    return _report(ledger, useful, superseded, notes, length(losses))


def _claim(proposal: Proposal, losses: Intervals, used: Intervals) -> tuple[Intervals, Intervals]:
    """What the proposal can still gain, and all time that is claimed afterwards."""
    gained: Intervals = ()
    for saving in proposal.savings:
        free = subtract(intersect(saving.intervals, losses), used)
        if saving.hidden_behind is not None:
            room = subtract(subtract(saving.hidden_behind, free), used)
            ns = min(length(free), length(room))
            free = take_first(free, ns)
            used = union_of_two(used, take_first(room, ns))
        used = union_of_two(used, free)
        gained = union_of_two(gained, free)
    return gained, used


def _advice(
    ledger: Ledger, rule: str, proposal: Proposal, standalone: Intervals, gained: Intervals
) -> Advice:
    return Advice(
        rule=rule,
        proposal=proposal,
        standalone=length(standalone),
        marginal=length(gained),
        points=0.0,
        accelerator_ns=accelerator_ns(ledger, gained),
        intervals=gained,
    )


def _report(
    ledger: Ledger,
    useful: Sequence[Advice],
    superseded: Sequence[Advice],
    notes: Sequence[str],
    losses: int,
) -> AdviceReport:
    """Points are counted one after the other, so that they add up to the whole gain."""
    removed: Intervals = ()
    now = replay(ledger, removed)
    advice = []
    for item in useful:
        before = now.ett_percent
        removed = union_of_two(removed, item.intervals)
        now = replay(ledger, removed)
        advice.append(replace(item, points=now.ett_percent - before))
    return AdviceReport(
        ledger=ledger,
        advice=tuple(advice),
        superseded=tuple(
            replace(item, superseded_by=_superseded_by(item, useful)) for item in superseded
        ),
        ett_percent=now.ett_percent,
        wall=now.wall,
        lost=losses,
        notes=tuple(notes),
    )


def _superseded_by(advice: Advice, useful: Sequence[Advice]) -> str:
    """The rule that gains most of the time that this advice claims."""
    claimed = union(*(saving.intervals for saving in advice.proposal.savings))
    claimed = union(claimed, *(saving.hidden_behind or () for saving in advice.proposal.savings))
    shared = {other.rule: length(intersect(claimed, other.intervals)) for other in useful}
    rule = max(shared, key=lambda name: shared[name], default="")
    return rule if rule and shared[rule] else ""
