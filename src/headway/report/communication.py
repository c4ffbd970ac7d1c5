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
    found = []
    groups, calls = ledger.groups_made, ledger.early_calls
    if groups:
        made, asked = sum(one.made for one in groups), sum(one.calls for one in groups)
        used = sum(one.used for one in groups)
        text = f"{count(asked, 'call')} for {count(made, 'group')} of a rank, {used} used"
        found.append(("groups", f"{text}; {duration(sum(one.ns for one in groups))}"))
        needless = sum(one.needless for one in groups)
        if needless:
            text = f"about {duration(needless)}: for other ranks, unused or repeated"
            found.append(("needless (estimate)", text))
    if calls:
        times, ns = sum(one.times for one in calls), sum(one.ns for one in calls)
        least = sum(one.least for one in calls)
        text = f"{count(times, 'call')} of a rank, {duration(ns)} where it took longest"
        found.append(("object collectives", f"{text}, {duration(least)} where least"))
    return found


def process_group_findings(ledger: Ledger) -> list[Finding]:
    """The places that make groups, the most needless first."""
    return [
        Finding(duration(one.ns), _describe_groups(one), one.where, _group_advice(one))
        for one in ledger.groups_made
    ]


def collective_findings(ledger: Ledger) -> list[Finding]:
    """The places that talk before the first step, the costliest first."""
    return [
        Finding(duration(one.ns), _describe_calls(one), one.where, _call_advice(one))
        for one in ledger.early_calls
    ]


def _describe_groups(one: ProcessGroups) -> str:
    name = f" {one.desc}" if one.desc else ""
    kind = f"{one.backend}, {count(one.size, 'rank')} each"
    never = "never used" if one.settled else "not used so far"
    fate = [f"{one.used} used"] if one.used else []
    fate += [f"{one.unused} {never}"] if one.unused else []
    fate += [f"{one.again} the same as another"] if one.again else []
    made = f"{count(one.calls, 'call')} for {count(one.made, 'group')}"
    return f"{one.what}{name} ({kind}): {made}" + "".join(f", {text}" for text in fate)


def _group_advice(one: ProcessGroups) -> str:
    if is_installed_package(one.where):
        return ""
    if one.unused and one.unused == one.made:
        return "leave it out, or make it at its first use: headway.startup.process_groups"
    if one.calls > one.made:
        return "make only this rank's own: headway.startup.process_groups.partition or .split"
    if one.again:
        return (
            "one is enough, unless both must be busy at once: headway.startup.process_groups.group"
        )
    if one.unused:
        return "make them at their first use: headway.startup.process_groups"
    return ""


def _describe_calls(one: PreStepCollectives) -> str:
    size = f", {one.bytes:,} bytes sent" if one.bytes else ""
    return f"{one.times:,} x {one.what}{size}, {duration(one.least)} where least"


def _call_advice(one: PreStepCollectives) -> str:
    if is_installed_package(one.where):
        return ""
    if one.what in ("barrier", "monitored_barrier"):
        return "leave it out where a collective follows: that one waits for all ranks too"
    if one.times > 1:
        return "put all objects into one list, and send that once"
    return "nothing needs to be sent that every rank can compute from its configuration"
