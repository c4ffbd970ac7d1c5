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

MIN_GAIN_NS = 1_000_000  # ns; less is nothing to advise for


def resolve(
    ledger: Ledger, proposals: Sequence[tuple[str, Proposal]], notes: Sequence[str] = ()
) -> AdviceReport:
    """Time that two proposals would win goes to the surer one, then to the one worth more."""
    losses = lost_time(ledger)
    alone = {id(one): _claim(one, losses, ())[0] for _, one in proposals}
    ordered = sorted(
        proposals,
        key=lambda pair: (
            CONFIDENCES.index(pair[1].confidence),
            -length(alone[id(pair[1])]),
            pair[0],
        ),
    )
    used: Intervals = ()
    found = []
    for rule, proposal in ordered:
        won, taken = _claim(proposal, losses, used)
        if length(won) < MIN_GAIN_NS:
            won, taken = (), used
        used = taken
        found.append(_advice(ledger, rule, proposal, alone[id(proposal)], won))
    good = sorted((one for one in found if one.worth), key=lambda one: (-one.worth, one.rule))
    none = [one for one in found if not one.worth and one.alone >= MIN_GAIN_NS]
    return _report(ledger, good, none, notes, length(losses))


def _claim(proposal: Proposal, losses: Intervals, used: Intervals) -> tuple[Intervals, Intervals]:
    """What is left for it to win, and all that is then in use."""
    won: Intervals = ()
    for cut in proposal.cuts:
        free = subtract(intersect(cut.take, losses), used)
        if cut.behind is not None:
            room = subtract(subtract(cut.behind, free), used)
            ns = min(length(free), length(room))
            free = take_first(free, ns)
            used = union_of_two(used, take_first(room, ns))
        used = union_of_two(used, free)
        won = union_of_two(won, free)
    return won, used


def _advice(
    ledger: Ledger, rule: str, proposal: Proposal, alone: Intervals, won: Intervals
) -> Advice:
    return Advice(
        rule=rule,
        proposal=proposal,
        alone=length(alone),
        worth=length(won),
        points=0.0,
        accelerator_ns=accelerator_ns(ledger, won),
        won=won,
    )


def _report(
    ledger: Ledger,
    good: Sequence[Advice],
    none: Sequence[Advice],
    notes: Sequence[str],
    losses: int,
) -> AdviceReport:
    """Points are counted one after the other, so that they add up to the whole gain."""
    removed: Intervals = ()
    now = replay(ledger, removed)
    advice = []
    for one in good:
        before = now.ett_percent
        removed = union_of_two(removed, one.won)
        now = replay(ledger, removed)
        advice.append(replace(one, points=now.ett_percent - before))
    return AdviceReport(
        ledger=ledger,
        advice=tuple(advice),
        covered=tuple(replace(one, instead=_superseded_by(one, good)) for one in none),
        ett_percent=now.ett_percent,
        wall=now.wall,
        lost=losses,
        notes=tuple(notes),
    )


def _superseded_by(one: Advice, good: Sequence[Advice]) -> str:
    """Whose time it would have won, for the most part."""
    wanted = union(*(cut.take for cut in one.proposal.cuts))
    wanted = union(wanted, *(cut.behind or () for cut in one.proposal.cuts))
    shared = {other.rule: length(intersect(wanted, other.won)) for other in good}
    rule = max(shared, key=lambda name: shared[name], default="")
    return rule if rule and shared[rule] else ""
