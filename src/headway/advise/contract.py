"""Advice as others read it: `headway advise --json`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from headway.advise.model import Advice, AdviceReport, Proposal
from headway.ledger.model import NS

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
