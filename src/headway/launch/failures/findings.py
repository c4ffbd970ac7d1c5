"""What one fact says on its own: a cause, a symptom, a cascade, or nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from headway.launch.failures import codes, wording, xid
from headway.launch.failures.signatures import DECISIVE, SPECIFIC, Signature, match
from headway.launch.failures.tracebacks import looks_raised
from headway.launch.failures.verdict import Fact, source_rank
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
        text = f"{kind}{mark}{wording.strip_advice(message)}"
        return match(text, loud=True, echo=False)
    text = wording.strip_advice(fact.text)
    if fact.source in STRONG_SOURCES:
        return match(text, loud=True, echo=False)
    raised = looks_raised(text)
    echo = not raised and fact.level != "error" and wording.is_config_echo(fact.text)
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
    return fact.code if fact.code is not None else codes.parse_exit_code(fact.text)
