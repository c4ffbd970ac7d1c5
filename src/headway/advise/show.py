"""Render advice for the terminal and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from headway.advise.model import Advice, AdviceReport, Proposal
from headway.format import count, duration, one_line, percent
from headway.units import NS

SCHEMA = 1
HOUR = 3600 * NS


def to_dict(plan: AdviceReport) -> dict[str, Any]:
    """Seconds, percentage points and accelerator-hours; those of `advice` add up to `with_all`."""
    return {
        "schema": SCHEMA,
        "run": plan.ledger.run,
        "wall_s": plan.ledger.wall / NS,
        "lost_s": plan.lost / NS,
        "ett_percent": plan.ledger.ett_percent,
        "with_all": {
            "ett_percent": plan.ett_percent,
            "wall_s": plan.wall / NS,
            "seconds": plan.worth / NS,
            "accelerator_hours": sum(one.accelerator_ns for one in plan.advice) / HOUR,
            "command": run_command(plan, (one.proposal for one in plan.advice)),
        },
        "advice": [_advice_to_dict(plan, one) for one in plan.advice],
        "covered": [_advice_to_dict(plan, one) | {"instead": one.instead} for one in plan.covered],
        "notes": list(plan.notes),
    }


def _advice_to_dict(plan: AdviceReport, one: Advice) -> dict[str, Any]:
    proposal = one.proposal
    return {
        "rule": one.rule,
        "title": proposal.title,
        "seconds": one.worth / NS,
        "alone_seconds": one.alone / NS,
        "points": one.points,
        "accelerator_hours": one.accelerator_ns / HOUR,
        "confidence": proposal.confidence,
        "why": proposal.why,
        "command": run_command(plan, [proposal]),
        "code": list(proposal.code),
        "see": proposal.see,
    }


def run_command(plan: AdviceReport, proposals: Iterable[Proposal]) -> str | None:
    """`headway run` with the flags of all of them, each once; None where there are none."""
    flags: dict[str, list[str]] = {}
    for proposal in proposals:
        name = ""
        for word in proposal.flags:
            if word.startswith("--"):
                name = word
                flags[name] = []
            else:
                flags[name].append(word)
    if not flags:
        return None
    words = ["--auto"] if plan.ledger.auto else []  # the run had it, and is to keep it
    words += [word for name, values in flags.items() for word in (name, *values)]
    job = plan.ledger.command or ("COMMAND",)
    return shlex.join(["headway", "run", *words, "--", *job])


MIN_SHARE = 100  # one part in so many of what was lost is not worth an entry of its own


def report_lines(plan: AdviceReport) -> Iterator[str]:
    """All of it."""
    ledger = plan.ledger
    now = f"ETT {percent(ledger.ett_percent)} of {duration(ledger.wall)}"
    yield f"headway: {one_line(ledger.run, 60)}: {now}, {duration(plan.lost)} lost"
    if not plan.advice:
        yield "  no rule finds time in this run that it knows how to win"
    large = [one for one in plan.advice if one.worth * MIN_SHARE >= plan.lost]
    for number, one in enumerate(large, 1):
        yield from _advice_lines(plan, number, one)
    small = plan.advice[len(large) :]
    if small:
        yield ""
        total = f"{count(len(small), 'change')} worth less, {duration(sum(o.worth for o in small))}"
        yield f"  {total} together: {', '.join(one.rule for one in small)}"
    if plan.advice:
        yield ""
        won = f"{duration(plan.worth)} of the {duration(plan.lost)}"
        yield f"  With all of it: ETT {percent(plan.ett_percent)}, {won} won"
        together = run_command(plan, (one.proposal for one in plan.advice))
        if together:
            yield f"  All flags at once:  {together}"
        if together and ledger.auto is None:
            job = shlex.join(ledger.command or ("COMMAND",))
            yield f"  Or every booster that is safe for the job:  headway run --auto -- {job}"
    for one in plan.covered:
        by = f", which {one.instead} wins as well" if one.instead else ""
        yield f"  Not beside it: {one.rule}, {duration(one.alone)} alone{by}"
    for note in plan.notes:
        yield f"  Note: {one_line(note, 300)}"


def _advice_lines(plan: AdviceReport, number: int, one: Advice) -> Iterator[str]:
    proposal = one.proposal
    yield ""
    yield f"  {number}. {one_line(proposal.title, 200)}"
    worth = f"+{one.points:.1f} points, {duration(one.worth)}, "
    worth += format_accelerator_hours(one.accelerator_ns)
    more = f"; {duration(one.alone)} without the others" if one.alone > one.worth else ""
    yield f"     {worth}{more}"
    yield f"     {proposal.confidence} confidence: {one_line(proposal.why, 600)}"
    yield from command_lines(one.rule, proposal)


def command_lines(rule: str, proposal: Proposal) -> Iterator[str]:
    """What to type, and where to read about it."""
    if proposal.flags:
        yield f"       headway run {one_line(shlex.join(proposal.flags))} -- COMMAND"
    yield from (f"       {one_line(line)}" for line in proposal.code)
    yield f"     rule {rule}" + (f", {proposal.see}" if proposal.see else "")


def format_accelerator_hours(ns: int) -> str:
    """Accelerator-hours, with as many digits as there is to say."""
    number = ns / HOUR
    told = f"{number:,.1f}" if number >= 10 else f"{number:.2g}"
    return f"{told} accelerator-hours"
