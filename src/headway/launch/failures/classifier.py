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

MAX_WARNING_WEIGHT = 31  # maximum weight of a warning
MAX_INFO_WEIGHT = 18  # maximum weight of a line of information
STRONG_SOURCES = ("scheduler", "kernel", "k8s")

# For an unspecific exception: places in the code that say more than its message.
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
# Categories that mean the sample, not the program or its checkpoint, in a data loader worker.
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
    driver_error = xid.parse(fact.text) if "id" in fact.text else None
    if driver_error is not None:
        category, role, weight = xid.role(driver_error.number)
        return _finding(fact, f"xid_{driver_error.number}", category, role, weight, source="kernel")
    signature = _matching_signature(fact)
    if signature is None:
        return None
    finding = _finding(
        fact,
        signature.id,
        signature.category,
        signature.role,
        signature.weight,
        source=signature.source,
    )
    finding = replace(
        finding, owner=signature.owner or finding.owner, retry=signature.retry or finding.retry
    )
    return _cap_by_level(_refine_by_location(finding))


def _matching_signature(fact: Fact) -> Signature | None:
    if fact.source == "exception":
        kind, separator, message = fact.text.partition(": ")
        text = f"{kind}{separator}{line_style.strip_advice(message)}"
        return match(text, is_error=True, is_config_echo=False)
    text = line_style.strip_advice(fact.text)
    if fact.source in STRONG_SOURCES:
        return match(text, is_error=True, is_config_echo=False)
    raised = looks_raised(text)
    is_echo = not raised and fact.level != "error" and line_style.is_config_echo(fact.text)
    return match(text, is_error=raised or fact.level == "error", is_config_echo=is_echo)


def _refine_by_location(finding: Finding) -> Finding:
    """Refine the category by the place where the exception was raised."""
    within = finding.fact.within
    if (
        _IN_WORKER.search(f"{within} {finding.fact.text}")
        and finding.category in _SAMPLE_CATEGORIES
    ):
        return replace(
            _recategorized(finding, "data_pipeline", f"{finding.id}_in_worker"),
            weight=SPECIFIC + 12,
        )
    if not within:
        return finding
    if finding.id == "enospc" and _SHM_PLACE.search(within):
        return _recategorized(finding, "shm_or_fd_limit", f"{finding.id}_shm")
    if (
        finding.id == "exception"
        and _SAVING.search(within)
        and "cannot be opened" in finding.fact.text
    ):
        return _recategorized(finding, "disk_full", "write_failed")
    if finding.id not in _VAGUE_SIGNATURES:
        return finding
    innermost = " ".join(within.split()[-3:])
    for category, place in _PLACES:
        if place.search(innermost):
            return replace(
                _recategorized(finding, category, f"{finding.id}_in_{category}"),
                weight=SPECIFIC + 12,
            )
    return finding


def _cap_by_level(finding: Finding) -> Finding:
    """A warning or an unmarked line weighs less than an error."""
    level = finding.fact.level
    if (
        finding.weight >= DECISIVE
        or finding.role in ("cascade", "fact")
        or finding.source in STRONG_SOURCES
    ):
        return finding
    if level == "warning" and "NCCL WARN" not in finding.fact.text:
        return replace(finding, weight=min(finding.weight, MAX_WARNING_WEIGHT), role="symptom")
    if level == "info" and finding.id != "nan_progress":
        return replace(finding, weight=min(finding.weight, MAX_INFO_WEIGHT), role="symptom")
    return finding


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


def _recategorized(finding: Finding, category: str, name: str) -> Finding:
    owner, retry, _ = CATEGORIES[category]
    return replace(finding, category=category, id=name, owner=owner, retry=retry)


def exit_code_of(fact: Fact) -> int | None:
    """The exit code of a fact, from its field or its text."""
    return fact.code if fact.code is not None else exit_codes.parse_exit_code(fact.text)


_WORLD = re.compile(r"\bnranks (\d+)|world_?size[\"']?[ :=]+(\d+)|\bWORLD_SIZE=(\d+)")
_NAMED_RANK = re.compile(
    r"(?:signal (?:due to a collective timeout )?from rank|[Rr]anks? \[?)(?: ?)(\d+)"
    r"(?=\]? (?:has|have|did|failed|and we will|is)\b)"
)
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work: (-?\d+)")
_MIN_COMPLAINTS = 3  # ranks that must complain before a silent one is suspected


def suspected_rank(symptoms: Sequence[Finding], facts: Sequence[Fact]) -> int | None:
    """The rank that the others wait for, if their messages point at one."""
    named = [
        int(match[1]) for symptom in symptoms if (match := _NAMED_RANK.search(symptom.fact.text))
    ]
    if named:
        return named[0]
    straggler = _straggler(facts)
    if straggler is not None:
        return straggler
    complaining = {symptom.fact.rank for symptom in symptoms if symptom.fact.rank is not None}
    known = {fact.rank for fact in facts if fact.rank is not None}
    sizes = [
        int(next(filter(None, match.groups()))) for f in facts if (match := _WORLD.search(f.text))
    ]
    if sizes and max(sizes) <= 100_000:
        known |= set(range(max(sizes)))
    known |= set(range(max(complaining, default=0)))
    silent = known - complaining
    return silent.pop() if len(silent) == 1 and len(complaining) >= _MIN_COMPLAINTS else None


def _straggler(facts: Sequence[Fact]) -> int | None:
    """The one rank whose last enqueued collective is older than those of all others."""
    last: dict[int, int] = {}
    for fact in facts:
        if fact.rank is not None and (match := _ENQUEUED.search(fact.text)):
            last.setdefault(fact.rank, int(match[1]))
    lowest = min(last.values(), default=0)
    ranks = [rank for rank, work in last.items() if work == lowest]
    return ranks[0] if len(ranks) == 1 and len(last) > _MIN_COMPLAINTS else None


# Ordinary lines between an error and the next one after which the first did not end the job.
LINES_AFTER_SURVIVED = 8
SIMULTANEOUS_S = 5.0  # seconds within which ends of ranks count as simultaneous
WEIGHT_TOLERANCE = 4  # symptoms that weigh this much less count as equal to the strongest
LAUNCHER_WEIGHT = 31  # a cascade of this weight is the report of a death; less is a trace of one
FATAL_WEIGHT = 32  # a symptom that weighs less may be incidental
MAX_SECONDARY = 12  # reported findings in addition to the cause
# Ends that may follow a failure: an earlier cause takes precedence.
_LAST_ENDS = frozenset({"time_limit", "user_cancel"})
# Signatures that are consequences of a category, in whatever order they were logged.
_EXPLAINED_BY = {"device_assert": ("cuda_fault",), "enospc": ("storage",)}
_CRASHES = frozenset({4, 6, 7, 8, 11})


def classify(facts: Iterable[Fact]) -> Verdict:
    """The first cause that the facts show."""
    known = list(facts)
    findings = _combine([finding for fact in known if (finding := find_meaning(fact)) is not None])
    fatal = [finding for finding in findings if not finding.fact.survived]
    cause = _decisive(fatal) or _root_cause(fatal)
    if cause is not None:
        return _verdict(cause, cause.fact.rank, findings, _confidence(cause, fatal))
    return _by_symptoms(fatal, findings, known)


def failed(facts: Iterable[Fact]) -> bool:
    """Whether the facts show a failure at all."""
    return any(
        not fact.survived
        and (
            (exit_code_of(fact) or 0) != 0
            or ((finding := find_meaning(fact)) is not None and _is_fatal(finding))
        )
        for fact in facts
    )


def _is_fatal(finding: Finding) -> bool:
    if finding.role == "cascade":
        return finding.weight >= LAUNCHER_WEIGHT
    return finding.role in ("root", "exit") or (
        finding.role == "symptom" and finding.weight >= FATAL_WEIGHT
    )


def _combine(findings: list[Finding]) -> list[Finding]:
    """Apply what only all findings together show."""
    faulty = xid.faulty_gpus(
        driver_error
        for finding in findings
        if (driver_error := xid.parse(finding.fact.text)) is not None
    )
    return [
        replace(finding, category="gpu_hardware", owner="infra", retry="swap", weight=95)
        if faulty
        and (driver_error := xid.parse(finding.fact.text)) is not None
        and driver_error.gpu in faulty
        else finding
        for finding in findings
    ]


def _decisive(findings: Sequence[Finding]) -> Finding | None:
    """A finding of the scheduler, the kernel or the hardware, by the order of evidence."""
    decisive = [
        finding for finding in findings if finding.role == "root" and finding.weight >= DECISIVE
    ]
    decisive.sort(key=lambda finding: source_rank(finding.source))
    for finding in decisive:
        if finding.category in _LAST_ENDS and _was_broken_before(finding, findings):
            continue
        if finding.category == "platform_start" and _program_ran(findings):
            continue
        return _first([other for other in decisive if other.category == finding.category])
    return None


def _program_ran(findings: Sequence[Finding]) -> bool:
    """Whether the program ran at all: then its container was started."""
    return any(
        finding.role == "root" and finding.fact.source == "exception" for finding in findings
    )


def _is_late_end(finding: Finding) -> bool:
    return finding.weight >= DECISIVE and finding.category in {*_LAST_ENDS, "platform_start"}


def _was_broken_before(end: Finding, findings: Sequence[Finding]) -> bool:
    return any(
        finding.category not in _LAST_ENDS
        and (finding.role == "root" or (finding.role == "symptom" and finding.weight >= SPECIFIC))
        and _before(finding.fact, end.fact)
        for finding in findings
    )


def _root_cause(findings: Sequence[Finding]) -> Finding | None:
    """The first cause in time; of a chain of exceptions, the first specific one."""
    roots = [
        finding for finding in findings if finding.role == "root" and not _is_late_end(finding)
    ]
    if not roots:
        return None
    not_survived = [finding for finding in roots if not _was_survived(finding, roots)] or roots
    marked = [finding for finding in not_survived if not _is_unmarked(finding)]
    if any(finding.weight >= SPECIFIC for finding in marked):
        not_survived = marked
    first = _first(not_survived)
    chain = [finding for finding in not_survived if _same_chain(finding, first)]
    specific = [finding for finding in chain if finding.weight >= SPECIFIC] or chain
    return _explanation(_first(specific), roots)


def _is_unmarked(finding: Finding) -> bool:
    """Whether it is a log line that is not marked as an error."""
    fact = finding.fact
    return (
        fact.source == "log"
        and fact.level != "error"
        and finding.weight < DECISIVE
        and not fact.text.startswith("what():")
        and not looks_raised(fact.text)
        and "NCCL WARN" not in fact.text
    )


def _explanation(best: Finding, roots: Sequence[Finding]) -> Finding:
    """A root gives way to the one that explains it; an unspecific one to a specific one of its
    rank.
    """
    explaining = [
        finding for finding in roots if best.category in _EXPLAINED_BY.get(finding.id, ())
    ]
    if not explaining and best.weight < SPECIFIC:
        explaining = [
            finding
            for finding in roots
            if finding.weight >= SPECIFIC
            and (finding.fact.rank == best.fact.rank or None in (finding.fact.rank, best.fact.rank))
            and not _was_survived(finding, roots)
        ]
    return _first(explaining) if explaining else best


def _was_survived(finding: Finding, roots: Sequence[Finding]) -> bool:
    """Whether the job continued after an error, up to another error of the same log."""
    later = [
        other.fact
        for other in roots
        if other.fact.file == finding.fact.file and other.fact.line > finding.fact.line
    ]
    if not finding.fact.line or not later:
        return False
    return finding.fact.after - min(fact.after for fact in later) >= LINES_AFTER_SURVIVED


def _same_chain(finding: Finding, other: Finding) -> bool:
    if finding is other:
        return True
    same_log = finding.fact.file == other.fact.file and finding.fact.rank == other.fact.rank
    return same_log and finding.fact.chain == other.fact.chain != 0


def _first(findings: Sequence[Finding]) -> Finding:
    """The first in time; if unknown, the one of the largest weight."""
    if len({finding.fact.file for finding in findings}) == 1 and all(
        finding.fact.line for finding in findings
    ):
        return min(findings, key=lambda finding: (finding.fact.line, -finding.weight))
    if all(finding.fact.at is not None for finding in findings):
        return min(findings, key=lambda finding: (finding.fact.at or 0.0, -finding.weight))
    return max(findings, key=lambda finding: finding.weight)


def _before(fact: Fact, other: Fact) -> bool:
    if fact.at is not None and other.at is not None and abs(fact.at - other.at) > 1:
        return fact.at < other.at
    return fact.file == other.file and 0 < fact.line < other.line


def _by_symptoms(
    fatal: Sequence[Finding], findings: Sequence[Finding], facts: Sequence[Fact]
) -> Verdict:
    symptoms = [finding for finding in fatal if finding.role == "symptom"]
    strongest = max((finding.weight for finding in symptoms), default=0)
    complaints = [
        finding for finding in symptoms if finding.weight > FATAL_WEIGHT and finding.id != "aborted"
    ]
    death = _first_death(facts, {finding.fact.rank for finding in complaints})
    if death is not None and strongest < SPECIFIC:
        code = exit_code_of(death) or 0
        number = exit_codes.signal_of(code)
        silent = death.rank is not None and death.rank not in {
            finding.fact.rank for finding in complaints
        }
        if silent or number == 9 or number in _CRASHES - {6} or not complaints:
            no_oom = any(finding.id == "no_oom" for finding in findings)
            return _verdict_of_code(death, code, no_oom, findings)
    if symptoms:
        first = _first(
            [finding for finding in symptoms if finding.weight >= strongest - WEIGHT_TOLERANCE]
        )
        rank = suspected_rank(
            [finding for finding in symptoms if finding.category == first.category], facts
        )
        confidence = "medium" if first.weight >= SPECIFIC else "low"
        return _verdict(first, first.fact.rank if rank is None else rank, findings, confidence)
    return _no_cause(findings)


def _first_death(facts: Sequence[Fact], complaining: set[int | None]) -> Fact | None:
    """The most informative exit: of the first ones, a signal that launchers do not send.

    Otherwise the exit of a rank that does not report the end of another rank.
    """
    deaths = [(code, fact) for fact in facts if (code := exit_code_of(fact)) and not fact.survived]
    times = [fact.at for _, fact in deaths if fact.at is not None]
    if times:  # a later end was caused by the launcher
        deaths = [death for death in deaths if (death[1].at or 0.0) <= min(times) + SIMULTANEOUS_S]
    unsent = [death for death in deaths if exit_codes.signal_of(death[0]) not in (15, 2, 1)]
    signalled = [death for death in unsent if exit_codes.signal_of(death[0]) is not None]
    silent = [
        death for death in unsent if death[1].rank is not None and death[1].rank not in complaining
    ]
    for group in (signalled, silent, unsent, deaths):
        if group:
            return min(group, key=lambda death: (death[1].at or 0.0, death[1].line))[1]
    return None


def _verdict_of_code(fact: Fact, code: int, no_oom: bool, findings: Sequence[Finding]) -> Verdict:
    category, evidence = exit_codes.meaning(code, no_oom=no_oom)
    owner, retry, _ = CATEGORIES[category]
    text = fact.text.strip() or evidence
    if text not in evidence:
        evidence = f"{text} ({evidence})" if fact.text else evidence
    finding = Finding(
        fact=replace(fact, text=evidence),
        id=f"exit_{abs(code)}" if code >= 0 else f"signal_{-code}",
        category=category,
        role="exit",
        weight=10,
        owner=owner,
        retry=retry,
        source="exit",
    )
    is_sure = category == "native_crash" or (category == "unknown" and no_oom)
    return _verdict(finding, fact.rank, findings, "medium" if is_sure else "low")


def _no_cause(findings: Sequence[Finding]) -> Verdict:
    fact = next(
        (finding.fact for finding in findings if not finding.fact.survived), Fact(source="exit")
    )
    evidence = fact.text or "the job ended without a known reason"
    finding = Finding(
        fact=replace(fact, text=evidence),
        id="none",
        category="unknown",
        role="root",
        weight=0,
        owner="ambiguous",
        retry="bounded",
        source=fact.source,
    )
    return _verdict(finding, fact.rank, findings, "low")


def _confidence(cause: Finding, findings: Sequence[Finding]) -> str:
    rivals = {
        finding.category
        for finding in findings
        if finding.role == "root" and finding.weight >= SPECIFIC
    }
    if cause.weight >= DECISIVE:
        return "high"
    if cause.weight < SPECIFIC:
        return "medium" if cause.source == "exception" else "low"
    return "high" if len(rivals) == 1 and cause.fact.level != "warning" else "medium"


def _verdict(
    cause: Finding, rank: int | None, findings: Sequence[Finding], confidence: str
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
        others=_secondary_findings(cause, findings),
        file=cause.fact.file,
        line=cause.fact.line,
    )


def _evidence(finding: Finding) -> str:
    """Redacted before it is cut, as a secret that is cut in two would not be recognized."""
    return redact.text(" ".join(finding.fact.text.split()))[:MAX_EVIDENCE]


def _secondary_findings(
    cause: Finding, findings: Sequence[Finding]
) -> tuple[SecondaryFinding, ...]:
    """The findings in addition to the cause, each kind once."""
    secondary: dict[tuple[str, str], SecondaryFinding] = {}
    for finding in findings:
        if finding.fact is cause.fact or finding.id == cause.id or finding.role == "fact":
            continue
        role = {"root": "other", "exit": "cascade"}.get(finding.role, finding.role)
        role = "survived" if finding.fact.survived else role
        text = _evidence(finding) or exit_codes.describe_exit_code(finding.fact.code or 0)
        other = SecondaryFinding(
            role=cast(Role, role), category=finding.category, rank=finding.fact.rank, evidence=text
        )
        secondary.setdefault((finding.id, role), other)
    return tuple(list(secondary.values())[:MAX_SECONDARY])
