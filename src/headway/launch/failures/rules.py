"""From facts to a verdict: which of all findings is the first cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headway import redact
from headway.launch.failures import codes, xid
from headway.launch.failures.findings import Finding, exit_code_of, find_meaning
from headway.launch.failures.signatures import DECISIVE, SPECIFIC
from headway.launch.failures.suspects import suspected_rank
from headway.launch.failures.tracebacks import looks_raised
from headway.launch.failures.verdict import (
    MAX_EVIDENCE,
    Fact,
    SecondaryFinding,
    Verdict,
    fingerprint,
    source_rank,
)
from headway.taxonomy import CATEGORIES

LINES_AFTER_SURVIVED = (
    8  # ordinary lines after an error, with another error to come: it ended nothing
)
SIMULTANEOUS_S = 5.0  # seconds within which ends of ranks count as one
WEIGHT_TOLERANCE = 4  # symptoms that weigh this much less count as one with the strongest
LAUNCHER_WEIGHT = 31  # a cascade that weighs this much tells of a death; less, only of its traces
FATAL_WEIGHT = 32  # a symptom that weighs less may be a word in passing
# What was seen beside the cause can be.
ROLES = ("symptom", "cascade", "other", "survived")
MAX_SECONDARY = 12  # findings beside the cause that are reported
# Ends that come to a job which is already broken: a cause that was there before them wins.
_LAST_ENDS = frozenset({"time_limit", "user_cancel"})
# What comes of them elsewhere, whichever of both is told first.
_EXPLAINED_BY = {"device_assert": ("cuda_fault",), "enospc": ("storage",)}
_CRASHES = frozenset({4, 6, 7, 8, 11})


def classify(facts: Iterable[Fact]) -> Verdict:
    """The first cause that the facts tell."""
    known = list(facts)
    found = _combine([one for fact in known if (one := find_meaning(fact)) is not None])
    dead = [one for one in found if not one.fact.survived]
    cause = _decisive(dead) or _root_cause(dead)
    if cause is not None:
        return _verdict(cause, cause.fact.rank, found, _confidence(cause, dead))
    return _by_symptoms(dead, found, known)


def failed(facts: Iterable[Fact]) -> bool:
    """Whether the facts tell of a failure at all."""
    return any(
        not fact.survived
        and (
            (exit_code_of(fact) or 0) != 0
            or ((one := find_meaning(fact)) is not None and _is_fatal(one))
        )
        for fact in facts
    )


def _is_fatal(found: Finding) -> bool:
    if found.role == "cascade":
        return found.weight >= LAUNCHER_WEIGHT
    return found.role in ("root", "exit") or (
        found.role == "symptom" and found.weight >= FATAL_WEIGHT
    )


def _combine(found: list[Finding]) -> list[Finding]:
    """What only all findings together tell."""
    sick = xid.faulty_gpus(told for one in found if (told := xid.parse(one.fact.text)) is not None)
    return [
        replace(one, category="gpu_hardware", owner="infra", retry="swap", weight=95)
        if sick and (told := xid.parse(one.fact.text)) is not None and told.gpu in sick
        else one
        for one in found
    ]


def _decisive(found: Sequence[Finding]) -> Finding | None:
    """A word of the scheduler, the kernel or the hardware, by the order of evidence."""
    words = [one for one in found if one.role == "root" and one.weight >= DECISIVE]
    words.sort(key=lambda one: source_rank(one.source))
    for one in words:
        if one.category in _LAST_ENDS and _was_broken_before(one, found):
            continue
        if one.category == "platform_start" and _program_ran(found):
            continue
        return _first([other for other in words if other.category == one.category])
    return None


def _program_ran(found: Sequence[Finding]) -> bool:
    """Whether the program ran at all: what starts has got its container."""
    return any(one.role == "root" and one.fact.source == "exception" for one in found)


def _is_late_end(one: Finding) -> bool:
    return one.weight >= DECISIVE and one.category in {*_LAST_ENDS, "platform_start"}


def _was_broken_before(end: Finding, found: Sequence[Finding]) -> bool:
    return any(
        one.category not in _LAST_ENDS
        and (one.role == "root" or (one.role == "symptom" and one.weight >= SPECIFIC))
        and _before(one.fact, end.fact)
        for one in found
    )


def _root_cause(found: Sequence[Finding]) -> Finding | None:
    """The first cause in time; of one chain of exceptions, the first that says something."""
    roots = [one for one in found if one.role == "root" and not _is_late_end(one)]
    if not roots:
        return None
    ended = [one for one in roots if not _was_survived(one, roots)] or roots
    loud = [one for one in ended if not _is_unmarked(one)]
    if any(one.weight >= SPECIFIC for one in loud):
        ended = loud
    first = _first(ended)
    chain = [one for one in ended if _same_chain(one, first)]
    told = [one for one in chain if one.weight >= SPECIFIC] or chain
    return _explanation(_first(told), roots)


def _is_unmarked(one: Finding) -> bool:
    """Whether it is a line of a log that nothing marks as an error."""
    fact = one.fact
    return (
        fact.source == "log"
        and fact.level != "error"
        and one.weight < DECISIVE
        and not fact.text.startswith("what():")
        and not looks_raised(fact.text)
        and "NCCL WARN" not in fact.text
    )


def _explanation(best: Finding, roots: Sequence[Finding]) -> Finding:
    """A root gives way to the one that explains it; a vague one, to a telling one of its rank."""
    telling = [one for one in roots if best.category in _EXPLAINED_BY.get(one.id, ())]
    if not telling and best.weight < SPECIFIC:
        telling = [
            one
            for one in roots
            if one.weight >= SPECIFIC
            and (one.fact.rank == best.fact.rank or None in (one.fact.rank, best.fact.rank))
            and not _was_survived(one, roots)
        ]
    return _first(telling) if telling else best


def _was_survived(one: Finding, roots: Sequence[Finding]) -> bool:
    """Whether the job ran on after an error, up to another one of the same log."""
    later = [
        other.fact
        for other in roots
        if other.fact.file == one.fact.file and other.fact.line > one.fact.line
    ]
    if not one.fact.line or not later:
        return False
    return one.fact.after - min(fact.after for fact in later) >= LINES_AFTER_SURVIVED


def _same_chain(one: Finding, other: Finding) -> bool:
    if one is other:
        return True
    same_log = one.fact.file == other.fact.file and one.fact.rank == other.fact.rank
    return same_log and one.fact.chain == other.fact.chain != 0


def _first(found: Sequence[Finding]) -> Finding:
    """The first in time; where that is not known, the one that says most."""
    if len({one.fact.file for one in found}) == 1 and all(one.fact.line for one in found):
        return min(found, key=lambda one: (one.fact.line, -one.weight))
    if all(one.fact.at is not None for one in found):
        return min(found, key=lambda one: (one.fact.at or 0.0, -one.weight))
    return max(found, key=lambda one: one.weight)


def _before(one: Fact, other: Fact) -> bool:
    if one.at is not None and other.at is not None and abs(one.at - other.at) > 1:
        return one.at < other.at
    return one.file == other.file and 0 < one.line < other.line


def _by_symptoms(
    dead: Sequence[Finding], found: Sequence[Finding], facts: Sequence[Fact]
) -> Verdict:
    symptoms = [one for one in dead if one.role == "symptom"]
    strongest = max((one.weight for one in symptoms), default=0)
    told = [one for one in symptoms if one.weight > FATAL_WEIGHT and one.id != "aborted"]
    death = _first_death(facts, {one.fact.rank for one in told})
    if death is not None and strongest < SPECIFIC:
        code = exit_code_of(death) or 0
        number = codes.signal_of(code)
        silent = death.rank is not None and death.rank not in {one.fact.rank for one in told}
        if silent or number == 9 or number in _CRASHES - {6} or not told:
            no_oom = any(one.id == "no_oom" for one in found)
            return _verdict_of_code(death, code, no_oom, found)
    if symptoms:
        first = _first([one for one in symptoms if one.weight >= strongest - WEIGHT_TOLERANCE])
        rank = suspected_rank([one for one in symptoms if one.category == first.category], facts)
        confidence = "medium" if first.weight >= SPECIFIC else "low"
        return _verdict(first, first.fact.rank if rank is None else rank, found, confidence)
    return _no_cause(found)


def _first_death(facts: Sequence[Fact], complaining: set[int | None]) -> Fact | None:
    """The exit that tells most: of the first ones, a signal that no launcher sends.

    Then that of a rank which does not complain of another's end.
    """
    dead = [(code, fact) for fact in facts if (code := exit_code_of(fact)) and not fact.survived]
    times = [fact.at for _, fact in dead if fact.at is not None]
    if times:  # what ends long after the first was ended by its launcher
        dead = [one for one in dead if (one[1].at or 0.0) <= min(times) + SIMULTANEOUS_S]
    own = [one for one in dead if codes.signal_of(one[0]) not in (15, 2, 1)]
    signalled = [one for one in own if codes.signal_of(one[0]) is not None]
    silent = [one for one in own if one[1].rank is not None and one[1].rank not in complaining]
    for group in (signalled, silent, own, dead):
        if group:
            return min(group, key=lambda one: (one[1].at or 0.0, one[1].line))[1]
    return None


def _verdict_of_code(fact: Fact, code: int, no_oom: bool, found: Sequence[Finding]) -> Verdict:
    category, evidence = codes.meaning(code, no_oom=no_oom)
    owner, retry, _ = CATEGORIES[category]
    words = fact.text.strip() or evidence
    if words not in evidence:
        evidence = f"{words} ({evidence})" if fact.text else evidence
    made = Finding(
        fact=replace(fact, text=evidence),
        id=f"exit_{abs(code)}" if code >= 0 else f"signal_{-code}",
        category=category,
        role="exit",
        weight=10,
        owner=owner,
        retry=retry,
        source="exit",
    )
    sure = category == "native_crash" or (category == "unknown" and no_oom)
    return _verdict(made, fact.rank, found, "medium" if sure else "low")


def _no_cause(found: Sequence[Finding]) -> Verdict:
    fact = next((one.fact for one in found if not one.fact.survived), Fact(source="exit"))
    evidence = fact.text or "it ended without leaving a reason"
    made = Finding(
        fact=replace(fact, text=evidence),
        id="none",
        category="unknown",
        role="root",
        weight=0,
        owner="ambiguous",
        retry="bounded",
        source=fact.source,
    )
    return _verdict(made, fact.rank, found, "low")


def _confidence(cause: Finding, found: Sequence[Finding]) -> str:
    rivals = {one.category for one in found if one.role == "root" and one.weight >= SPECIFIC}
    if cause.weight >= DECISIVE:
        return "high"
    if cause.weight < SPECIFIC:
        return "medium" if cause.source == "exception" else "low"
    return "high" if len(rivals) == 1 and cause.fact.level != "warning" else "medium"


def _verdict(
    cause: Finding, rank: int | None, found: Sequence[Finding], confidence: str
) -> Verdict:
    evidence = _evidence(cause)
    return Verdict(
        category=cause.category,
        owner=cause.owner,
        retry=cause.retry,
        rank=rank,
        node=cause.fact.node,
        evidence=evidence,
        signature=cause.id,
        confidence=confidence,
        fingerprint=fingerprint(cause.category, cause.id, evidence),
        others=_secondary_findings(cause, found),
        file=cause.fact.file,
        line=cause.fact.line,
    )


def _evidence(finding: Finding) -> str:
    """A secret that is cut in two would not be recognized."""
    return redact.text(" ".join(finding.fact.text.split()))[:MAX_EVIDENCE]


def _secondary_findings(cause: Finding, found: Sequence[Finding]) -> tuple[SecondaryFinding, ...]:
    """What was seen beside the cause: each kind once."""
    seen: dict[tuple[str, str], SecondaryFinding] = {}
    for one in found:
        if one.fact is cause.fact or one.id == cause.id or one.role == "fact":
            continue
        role = {"root": "other", "exit": "cascade"}.get(one.role, one.role)
        role = "survived" if one.fact.survived else role
        text = _evidence(one) or codes.describe_exit_code(one.fact.code or 0)
        other = SecondaryFinding(
            role=role, category=one.category, rank=one.fact.rank, evidence=text
        )
        seen.setdefault((one.id, role), other)
    return tuple(list(seen.values())[:MAX_SECONDARY])
