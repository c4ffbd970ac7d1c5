"""Proposals beside each other: no second is won twice, and none that was not lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.advise.intervals import Intervals, both, first, length, plus, union, without
from headway.advise.model import CONFIDENCES, Advice, Plan, Proposal
from headway.advise.replay import accelerator_ns, lost, replay
from headway.ledger.model import Ledger

FLOOR = 1_000_000  # ns; less is nothing to advise for


def resolve(
    ledger: Ledger, proposals: Sequence[tuple[str, Proposal]], notes: Sequence[str] = ()
) -> Plan:
    """Time that two proposals would win goes to the surer one, then to the one worth more."""
    losses = lost(ledger)
    alone = {id(one): _win(one, losses, ())[0] for _, one in proposals}
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
        won, taken = _win(proposal, losses, used)
        if length(won) < FLOOR:
            won, taken = (), used
        used = taken
        found.append(_advice(ledger, rule, proposal, alone[id(proposal)], won))
    good = sorted((one for one in found if one.worth), key=lambda one: (-one.worth, one.rule))
    none = [one for one in found if not one.worth and one.alone >= FLOOR]
    return _plan(ledger, good, none, notes, length(losses))


def _win(proposal: Proposal, losses: Intervals, used: Intervals) -> tuple[Intervals, Intervals]:
    """What is left for it to win, and all that is then in use."""
    won: Intervals = ()
    for cut in proposal.cuts:
        free = without(both(cut.take, losses), used)
        if cut.behind is not None:
            room = without(without(cut.behind, free), used)
            ns = min(length(free), length(room))
            free = first(free, ns)
            used = plus(used, first(room, ns))
        used = plus(used, free)
        won = plus(won, free)
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


def _plan(
    ledger: Ledger,
    good: Sequence[Advice],
    none: Sequence[Advice],
    notes: Sequence[str],
    losses: int,
) -> Plan:
    """Points are counted one after the other, so that they add up to the whole gain."""
    removed: Intervals = ()
    now = replay(ledger, removed)
    advice = []
    for one in good:
        before = now.ett_percent
        removed = plus(removed, one.won)
        now = replay(ledger, removed)
        advice.append(replace(one, points=now.ett_percent - before))
    return Plan(
        ledger=ledger,
        advice=tuple(advice),
        covered=tuple(replace(one, instead=_instead(one, good)) for one in none),
        ett_percent=now.ett_percent,
        wall=now.wall,
        lost=losses,
        notes=tuple(notes),
    )


def _instead(one: Advice, good: Sequence[Advice]) -> str:
    """Whose time it would have won, for the most part."""
    wanted = union(*(cut.take for cut in one.proposal.cuts))
    wanted = union(wanted, *(cut.behind or () for cut in one.proposal.cuts))
    shared = {other.rule: length(both(wanted, other.won)) for other in good}
    rule = max(shared, key=lambda name: shared[name], default="")
    return rule if rule and shared[rule] else ""
