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
MIN_SHARE = 100  # gains below 1 / MIN_SHARE of the lost time share one line


def to_dict(report: AdviceReport) -> dict[str, Any]:
    """Seconds, percentage points and accelerator-hours; `advice` adds up to `with_all`."""
    return {
        "schema": SCHEMA,
        "run": report.ledger.run,
        "wall_s": report.ledger.wall / NS,
        "lost_s": report.lost / NS,
        "ett_percent": report.ledger.ett_percent,
        "with_all": {
            "ett_percent": report.ett_percent,
            "wall_s": report.wall / NS,
            "seconds": report.gain / NS,
            "accelerator_hours": sum(item.accelerator_ns for item in report.advice) / HOUR,
            "command": run_command(report, (item.proposal for item in report.advice)),
        },
        "advice": [_advice_to_dict(report, item) for item in report.advice],
        "covered": [
            _advice_to_dict(report, item) | {"instead": item.superseded_by}
            for item in report.superseded
        ],
        "notes": list(report.notes),
    }


def _advice_to_dict(report: AdviceReport, advice: Advice) -> dict[str, Any]:
    proposal = advice.proposal
    return {
        "rule": advice.rule,
        "title": proposal.title,
        "seconds": advice.marginal / NS,
        "alone_seconds": advice.standalone / NS,
        "points": advice.points,
        "accelerator_hours": advice.accelerator_ns / HOUR,
        "confidence": proposal.confidence,
        "why": proposal.why,
        "command": run_command(report, [proposal]),
        "code": list(proposal.code),
        "see": proposal.see,
    }


def run_command(report: AdviceReport, proposals: Iterable[Proposal]) -> str | None:
    """`headway run` with the flags of all proposals, each once; None without flags."""
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
    words = ["--auto"] if report.ledger.auto else []  # keep --auto if the run used it
    words += [word for name, values in flags.items() for word in (name, *values)]
    job = report.ledger.command or ("COMMAND",)
    return shlex.join(["headway", "run", *words, "--", *job])


def report_lines(report: AdviceReport) -> Iterator[str]:
    ledger = report.ledger
    now = f"ETT {percent(ledger.ett_percent)} of {duration(ledger.wall)}"
    yield f"headway: {one_line(ledger.run, 60)}: {now}, {duration(report.lost)} lost"
    if not report.advice:
        yield "  no rule finds time to gain in this run"
    major = [item for item in report.advice if item.marginal * MIN_SHARE >= report.lost]
    for number, item in enumerate(major, 1):
        yield from _advice_lines(report, number, item)
    minor = report.advice[len(major) :]
    if minor:
        yield ""
        total = f"{count(len(minor), 'smaller change')}, "
        total += duration(sum(item.marginal for item in minor))
        yield f"  {total} together: {', '.join(item.rule for item in minor)}"
    if report.advice:
        yield ""
        gained = f"{duration(report.gain)} of the {duration(report.lost)}"
        yield f"  With all changes: ETT {percent(report.ett_percent)}, {gained} gained"
        together = run_command(report, (item.proposal for item in report.advice))
        if together:
            yield f"  All flags at once:  {together}"
        if together and ledger.auto is None:
            job = shlex.join(ledger.command or ("COMMAND",))
            yield f"  Or every booster that is safe for the job:  headway run --auto -- {job}"
    for item in report.superseded:
        by = f" by {item.superseded_by}" if item.superseded_by else ""
        yield f"  Superseded{by}: {item.rule}, {duration(item.standalone)} alone"
    for note in report.notes:
        yield f"  Note: {one_line(note, 300)}"


def _advice_lines(report: AdviceReport, number: int, advice: Advice) -> Iterator[str]:
    proposal = advice.proposal
    yield ""
    yield f"  {number}. {one_line(proposal.title, 200)}"
    gain = f"+{advice.points:.1f} points, {duration(advice.marginal)}, "
    gain += format_accelerator_hours(advice.accelerator_ns)
    more = (
        f"; {duration(advice.standalone)} without the others"
        if advice.standalone > advice.marginal
        else ""
    )
    yield f"     {gain}{more}"
    yield f"     {proposal.confidence} confidence: {one_line(proposal.why, 600)}"
    yield from command_lines(advice.rule, proposal)


def command_lines(rule: str, proposal: Proposal) -> Iterator[str]:
    """The commands to type, and the documentation."""
    if proposal.flags:
        yield f"       headway run {one_line(shlex.join(proposal.flags))} -- COMMAND"
    yield from (f"       {one_line(line)}" for line in proposal.code)
    yield f"     rule {rule}" + (f", {proposal.see}" if proposal.see else "")


def format_accelerator_hours(ns: int) -> str:
    number = ns / HOUR
    text = f"{number:,.1f}" if number >= 10 else f"{number:.2g}"
    return f"{text} accelerator-hours"
