"""Process groups and early collectives in words, each with advice."""

from __future__ import annotations

from dataclasses import dataclass

from headway.format import count, duration
from headway.ledger.communication import is_installed_package
from headway.ledger.model import Ledger, PreStepCollectives, ProcessGroups


@dataclass(frozen=True, slots=True)
class Finding:
    """One place of the job: what it costs, where it is, and what to do."""

    cost: str
    what: str
    where: str
    advice: str


def communication_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each fact."""
    facts = []
    groups, calls = ledger.process_groups, ledger.pre_step_collectives
    if groups:
        made, requested = sum(row.made for row in groups), sum(row.calls for row in groups)
        used = sum(row.used for row in groups)
        text = f"{count(requested, 'call')} for {count(made, 'group')} of a rank, {used} used"
        facts.append(("groups", f"{text}; {duration(sum(row.ns for row in groups))}"))
        needless = sum(row.avoidable for row in groups)
        if needless:
            text = f"about {duration(needless)}: for other ranks, unused or repeated"
            facts.append(("needless (estimate)", text))
    if calls:
        times, ns = sum(row.times for row in calls), sum(row.ns for row in calls)
        least = sum(row.min_time for row in calls)
        text = f"{count(times, 'call')} of a rank, {duration(ns)} where it took longest"
        facts.append(("object collectives", f"{text}, {duration(least)} where least"))
    return facts


def process_group_findings(ledger: Ledger) -> list[Finding]:
    """The places that make groups, the most needless first."""
    return [
        Finding(duration(groups.ns), _describe_groups(groups), groups.where, _group_advice(groups))
        for groups in ledger.process_groups
    ]


def collective_findings(ledger: Ledger) -> list[Finding]:
    """The places that talk before the first step, the costliest first."""
    return [
        Finding(duration(calls.ns), _describe_calls(calls), calls.where, _call_advice(calls))
        for calls in ledger.pre_step_collectives
    ]


def _describe_groups(groups: ProcessGroups) -> str:
    name = f" {groups.desc}" if groups.desc else ""
    kind = f"{groups.backend}, {count(groups.size, 'rank')} each"
    never = "never used" if groups.complete else "not used so far"
    use = [f"{groups.used} used"] if groups.used else []
    use += [f"{groups.unused} {never}"] if groups.unused else []
    use += [f"{groups.duplicate} the same as another"] if groups.duplicate else []
    made = f"{count(groups.calls, 'call')} for {count(groups.made, 'group')}"
    return f"{groups.what}{name} ({kind}): {made}" + "".join(f", {text}" for text in use)


def _group_advice(groups: ProcessGroups) -> str:
    if is_installed_package(groups.where):
        return ""
    if groups.unused and groups.unused == groups.made:
        return "leave it out, or make it at its first use: headway.startup.process_groups"
    if groups.calls > groups.made:
        return "make only this rank's own: headway.startup.process_groups.partition or .split"
    if groups.duplicate:
        return (
            "one is enough, unless both must be busy at once: headway.startup.process_groups.group"
        )
    if groups.unused:
        return "make them at their first use: headway.startup.process_groups"
    return ""


def _describe_calls(calls: PreStepCollectives) -> str:
    size = f", {calls.bytes:,} bytes sent" if calls.bytes else ""
    return f"{calls.times:,} x {calls.what}{size}, {duration(calls.min_time)} where least"


def _call_advice(calls: PreStepCollectives) -> str:
    if is_installed_package(calls.where):
        return ""
    if calls.what in ("barrier", "monitored_barrier"):
        return "leave it out where a collective follows: that one waits for all ranks too"
    if calls.times > 1:
        return "put all objects into one list, and send that once"
    return "nothing needs to be sent that every rank can compute from its configuration"
