"""From facts to a verdict: what each fact means, and which finding is the first cause.

A finding is a cause, a symptom, a cascade, or a plain fact. Of symptoms alone, the rank that the
others wait for is suspected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from headway import redact
from headway.launch.failures import exit_codes, line_style, xid
from headway.launch.failures.model import (
    MAX_EVIDENCE,
    Fact,
    Role,
    SecondaryFinding,
    Verdict,
    fingerprint,
    source_rank,
)
from headway.launch.failures.signatures import DECISIVE, SPECIFIC, Signature, match
from headway.launch.failures.tracebacks import looks_raised
from headway.taxonomy import CATEGORIES

MAX_WARNING_WEIGHT = 31  # the most that a warning weighs
MAX_INFO_WEIGHT = 18  # the most that a line of information weighs
STRONG_SOURCES = ("scheduler", "kernel", "k8s")

# Where an exception of no telling type was raised, when that tells more than its words.
_PLACES = (
    (
        "data_pipeline",
        re.compile(
            r"DataLoader worker|torch/utils/data/_utils/(?:collate|fetch)|/webdataset/|/litdata/"
            r"|/datasets/(?!__init__)|torchvision/(?:datasets|io)|/PIL/|/streaming/(?:base|text)"
            r"|/torchdata/|/decord/|/soundfile|/torchaudio/|/h5py/|/lmdb/|/pyarrow/"
            r"|:__getitem__ *$|:collate\w* *$|:_?collate_fn"
        ),
    ),
    (
        "checkpoint",
        re.compile(
            r"torch/serialization\.py:_?(?:legacy_)?load|/distributed/checkpoint/|/safetensors/"
            r"|:load_state_dict|:_?load_checkpoint|:resume_checkpoint|:_?load_from_checkpoint"
            r"|/checkpointing\.py:_?load|:_?restore\w* *$"
        ),
    ),
    (
        "compile",
        re.compile(
            r"torch/_inductor/[\w/]+\.py:\w+ *$|triton/(?:compiler|backends)/"
            r"|torch/_dynamo/(?!eval_frame|external_utils)[\w/]+\.py:\w+ *$"
            r"|torch/utils/cpp_extension\.py|torch/_functorch/\S+:\w+ *$"
        ),
    ),
    ("rendezvous", re.compile(r"distributed/elastic/rendezvous")),
)
_SHM_PLACE = re.compile(
    r"multiprocessing/(?:reductions|queues|heap|synchronize|shared_memory|resource_sharer)"
)
_SAVING = re.compile(
    r"torch/serialization\.py:(?:save|_save|__init__|__exit__|_open_zipfile_writer)"
)
_IN_WORKER = re.compile(r"DataLoader worker(?: process|$)")
# What means the sample, not the program or its checkpoint, when a loader's worker raises it.
_SAMPLE_CATEGORIES = frozenset({"checkpoint", "user_code"})
_VAGUE_SIGNATURES = frozenset({"exception", "exception_inline", "path", "shape", "config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact and its meaning."""

    fact: Fact
    id: str
    category: str
    role: str
    weight: int
    owner: str
    retry: str
    source: str


def find_meaning(fact: Fact) -> Finding | None:
    """The meaning of a fact on its own; None if it has none."""
    if fact.source == "exit" and fact.code is not None:
        return None if fact.code == 0 else _finding(fact, "exit_code", "unknown", "exit", 10)
    told = xid.parse(fact.text) if "id" in fact.text else None
    if told is not None:
        category, role, weight = xid.role(told.number)
        return _finding(fact, f"xid_{told.number}", category, role, weight, source="kernel")
    found = _matching_signature(fact)
    if found is None:
        return None
    made = _finding(fact, found.id, found.category, found.role, found.weight, source=found.source)
    made = replace(made, owner=found.owner or made.owner, retry=found.retry or made.retry)
    return _cap_by_level(_refine_by_location(made))


def _matching_signature(fact: Fact) -> Signature | None:
    if fact.source == "exception":
        kind, mark, message = fact.text.partition(": ")
        text = f"{kind}{mark}{line_style.strip_advice(message)}"
        return match(text, loud=True, echo=False)
    text = line_style.strip_advice(fact.text)
    if fact.source in STRONG_SOURCES:
        return match(text, loud=True, echo=False)
    raised = looks_raised(text)
    echo = not raised and fact.level != "error" and line_style.is_config_echo(fact.text)
    return match(text, loud=raised or fact.level == "error", echo=echo)


def _refine_by_location(found: Finding) -> Finding:
    """Sharpened by the place where it was raised."""
    within = found.fact.within
    if _IN_WORKER.search(f"{within} {found.fact.text}") and found.category in _SAMPLE_CATEGORIES:
        return replace(
            _recategorized(found, "data_pipeline", f"{found.id}_in_worker"), weight=SPECIFIC + 12
        )
    if not within:
        return found
    if found.id == "enospc" and _SHM_PLACE.search(within):
        return _recategorized(found, "shm_or_fd_limit", f"{found.id}_shm")
    if found.id == "exception" and _SAVING.search(within) and "cannot be opened" in found.fact.text:
        return _recategorized(found, "disk_full", "write_failed")
    if found.id not in _VAGUE_SIGNATURES:
        return found
    innermost = " ".join(within.split()[-3:])
    for category, place in _PLACES:
        if place.search(innermost):
            return replace(
                _recategorized(found, category, f"{found.id}_in_{category}"), weight=SPECIFIC + 12
            )
    return found


def _cap_by_level(found: Finding) -> Finding:
    """A warning, or a word in passing, weighs less than an error."""
    tone = found.fact.level
    if (
        found.weight >= DECISIVE
        or found.role in ("cascade", "fact")
        or found.source in STRONG_SOURCES
    ):
        return found
    if tone == "warning" and "NCCL WARN" not in found.fact.text:
        return replace(found, weight=min(found.weight, MAX_WARNING_WEIGHT), role="symptom")
    if tone == "info" and found.id != "nan_progress":
        return replace(found, weight=min(found.weight, MAX_INFO_WEIGHT), role="symptom")
    return found


def _finding(
    fact: Fact, name: str, category: str, role: str, weight: int, *, source: str = ""
) -> Finding:
    owner, retry, _ = CATEGORIES[category]
    if not source or source_rank(fact.source) < source_rank(source):
        source = fact.source
    return Finding(
        fact=fact,
        id=name,
        category=category,
        role=role,
        weight=weight,
        owner=owner,
        retry=retry,
        source=source,
    )


def _recategorized(found: Finding, category: str, name: str) -> Finding:
    owner, retry, _ = CATEGORIES[category]
    return replace(found, category=category, id=name, owner=owner, retry=retry)


def exit_code_of(fact: Fact) -> int | None:
    """The exit code that a fact tells, in its field or in its words."""
    return fact.code if fact.code is not None else exit_codes.parse_exit_code(fact.text)


_WORLD = re.compile(r"\bnranks (\d+)|world_?size[\"']?[ :=]+(\d+)|\bWORLD_SIZE=(\d+)")
_NAMED_RANK = re.compile(
    r"(?:signal (?:due to a collective timeout )?from rank|[Rr]anks? \[?)(?: ?)(\d+)"
    r"(?=\]? (?:has|have|did|failed|and we will|is)\b)"
)
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)")
_MIN_COMPLAINTS = 3  # ranks that complain, at least, before a silent one is suspected


def suspected_rank(symptoms: Sequence[Finding], facts: Sequence[Fact]) -> int | None:
    """The rank that the others wait for, if what they say points at one."""
    named = [int(hit[1]) for one in symptoms if (hit := _NAMED_RANK.search(one.fact.text))]
    if named:
        return named[0]
    behind = _straggler(facts)
    if behind is not None:
        return behind
    loud = {one.fact.rank for one in symptoms if one.fact.rank is not None}
    known = {fact.rank for fact in facts if fact.rank is not None}
    sizes = [int(next(filter(None, hit.groups()))) for f in facts if (hit := _WORLD.search(f.text))]
    if sizes and max(sizes) <= 100_000:
        known |= set(range(max(sizes)))
    known |= set(range(max(loud, default=0)))
    silent = known - loud
    return silent.pop() if len(silent) == 1 and len(loud) >= _MIN_COMPLAINTS else None


def _straggler(facts: Sequence[Fact]) -> int | None:
    """The one rank whose last enqueued collective is older than that of all others."""
    last: dict[int, int] = {}
    for fact in facts:
        if fact.rank is not None and (hit := _ENQUEUED.search(fact.text)):
            last.setdefault(fact.rank, int(hit[1]))
    lowest = min(last.values(), default=0)
    ranks = [rank for rank, work in last.items() if work == lowest]
    return ranks[0] if len(ranks) == 1 and len(last) > _MIN_COMPLAINTS else None


# Ordinary lines after an error, with another error to come: it ended nothing.
LINES_AFTER_SURVIVED = 8
SIMULTANEOUS_S = 5.0  # seconds within which ends of ranks count as one
WEIGHT_TOLERANCE = 4  # symptoms that weigh this much less count as one with the strongest
LAUNCHER_WEIGHT = 31  # a cascade that weighs this much tells of a death; less, only of its traces
FATAL_WEIGHT = 32  # a symptom that weighs less may be a word in passing
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
        number = exit_codes.signal_of(code)
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
    own = [one for one in dead if exit_codes.signal_of(one[0]) not in (15, 2, 1)]
    signalled = [one for one in own if exit_codes.signal_of(one[0]) is not None]
    silent = [one for one in own if one[1].rank is not None and one[1].rank not in complaining]
    for group in (signalled, silent, own, dead):
        if group:
            return min(group, key=lambda one: (one[1].at or 0.0, one[1].line))[1]
    return None


def _verdict_of_code(fact: Fact, code: int, no_oom: bool, found: Sequence[Finding]) -> Verdict:
    category, evidence = exit_codes.meaning(code, no_oom=no_oom)
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
        text = _evidence(one) or exit_codes.describe_exit_code(one.fact.code or 0)
        other = SecondaryFinding(
            role=cast(Role, role), category=one.category, rank=one.fact.rank, evidence=text
        )
        seen.setdefault((one.id, role), other)
    return tuple(list(seen.values())[:MAX_SECONDARY])
