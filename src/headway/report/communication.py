"""Texts on process groups and collectives before the first step, each with advice."""

from __future__ import annotations

from dataclasses import dataclass

from headway.format import count, duration
from headway.ledger.communication import is_installed_package
from headway.ledger.model import Ledger, PreStepCollectives, ProcessGroups


@dataclass(frozen=True, slots=True)
class Finding:
    """One code location of the job: its cost, and advice."""

    cost: str
    what: str
    where: str
    advice: str


def communication_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Return label and value of each fact."""
    facts = []
    groups, calls = ledger.process_groups, ledger.pre_step_collectives
    if groups:
        made, requested = sum(row.made for row in groups), sum(row.calls for row in groups)
        used = sum(row.used for row in groups)
        text = f"{count(requested, 'call')} for {count(made, 'group')} per rank, {used} used"
        facts.append(("groups", f"{text}; {duration(sum(row.ns for row in groups))}"))
        avoidable = sum(row.avoidable for row in groups)
        if avoidable:
            text = f"{duration(avoidable)} estimated: groups of other ranks, unused or duplicate"
            facts.append(("avoidable", text))
    if calls:
        times, ns = sum(row.times for row in calls), sum(row.ns for row in calls)
        least = sum(row.min_time for row in calls)
        text = f"{count(times, 'call')} per rank, {duration(ns)} on the slowest rank"
        facts.append(("object collectives", f"{text}, {duration(least)} on the fastest"))
    return facts


def process_group_findings(ledger: Ledger) -> list[Finding]:
    """Return the locations that create groups, those with the most avoidable time first."""
    return [
        Finding(duration(groups.ns), _describe_groups(groups), groups.where, _group_advice(groups))
        for groups in ledger.process_groups
    ]


def collective_findings(ledger: Ledger) -> list[Finding]:
    """Return the locations that communicate before the first step, the slowest first."""
    return [
        Finding(duration(calls.ns), _describe_calls(calls), calls.where, _call_advice(calls))
        for calls in ledger.pre_step_collectives
    ]


def _describe_groups(groups: ProcessGroups) -> str:
    name = f" {groups.desc}" if groups.desc else ""
    kind = f"{groups.backend}, {count(groups.size, 'rank')} each"
    never = "never used" if groups.complete else "not used yet"
    use = [f"{groups.used} used"] if groups.used else []
    use += [f"{groups.unused} {never}"] if groups.unused else []
    use += [f"{groups.duplicate} duplicate"] if groups.duplicate else []
    made = f"{count(groups.calls, 'call')} for {count(groups.made, 'group')}"
    return f"{groups.what}{name} ({kind}): {made}" + "".join(f", {text}" for text in use)


def _group_advice(groups: ProcessGroups) -> str:
    if is_installed_package(groups.where):
        return ""
    if groups.unused and groups.unused == groups.made:
        return "remove it, or create it on first use: headway.startup.process_groups"
    if groups.calls > groups.made:
        return "create only this rank's groups: headway.startup.process_groups.partition or .split"
    if groups.duplicate:
        return (
            "reuse one group, unless both are active at once: headway.startup.process_groups.group"
        )
    if groups.unused:
        return "create them on first use: headway.startup.process_groups"
    return ""


def _describe_calls(calls: PreStepCollectives) -> str:
    size = f", {calls.bytes:,} bytes sent" if calls.bytes else ""
    return f"{calls.times:,} x {calls.what}{size}, {duration(calls.min_time)} on the fastest rank"


def _call_advice(calls: PreStepCollectives) -> str:
    if is_installed_package(calls.where):
        return ""
    if calls.what in ("barrier", "monitored_barrier"):
        return "remove it if a collective follows: the collective also waits for all ranks"
    if calls.times > 1:
        return "put all objects into one list and send it once"
    return "do not send what every rank can compute from its configuration"
