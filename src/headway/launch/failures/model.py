"""Facts about the end of a job, and the verdict over them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

MAX_EVIDENCE = 300  # characters of evidence that are stored
# Sources of facts, the strongest first.
SOURCES = ("scheduler", "kernel", "k8s", "exception", "log", "signal", "exit")
Role = Literal["symptom", "cascade", "other", "survived"]  # of a finding in addition to the cause


def source_rank(source: str) -> int:
    """The position of a source in the order of evidence; an unknown one counts as a log."""
    return SOURCES.index(source if source in SOURCES else "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact about an end.

    `text` is a line, or "TypeName: message" for an exception; `code` is an exit code, negative for
    a death by that signal; `at` is in seconds of any clock that all facts share. The other fields
    come from the log: position, level, and whether the job continued.
    """

    source: str
    text: str = ""
    code: int | None = None
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    file: str = ""
    line: int = 0
    level: str = ""  # "error", "warning", "info" or empty
    within: str = ""  # the files of the innermost frames of a traceback
    chain: int = 0  # exceptions of one chain share a number; 0: no chain
    after: int = 0  # ordinary lines that followed in its log
    survived: bool = False  # training went on after it


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondaryFinding:
    """A finding in addition to the cause: a symptom of it, a cascade, or another candidate."""

    role: Role
    category: str
    rank: int | None
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a job ended, who owns the failure, and whether to retry."""

    category: str
    owner: str
    retry: str
    rank: int | None
    node: str | None
    evidence: str
    signature: str
    confidence: str
    fingerprint: str
    others: tuple[SecondaryFinding, ...] = ()
    file: str = ""
    line: int = 0


_VOLATILE = re.compile(
    r"0x[0-9a-fA-F]+"  # addresses
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b"  # uuids
    r"|(?:[\w.~-]+)?(?:/[\w.@+=~-]+)+/?"  # paths
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{7,}\b"  # hashes
    r"|\d+(?:[.,:]\d+)*"
)


def fingerprint(category: str, signature: str, evidence: str) -> str:
    """Equal for recurrences of one cause: numbers, addresses and paths are ignored."""
    words = " ".join(_VOLATILE.sub("#", evidence).split())
    return hashlib.sha256(f"{category}|{signature}|{words}".encode("utf-8", "replace")).hexdigest()[
        :16
    ]
