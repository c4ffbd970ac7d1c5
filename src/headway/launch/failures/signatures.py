"""The signatures of failures (data, in signatures.jsonl), and the fast search for them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.launch.failures.keywords import rarest_part, required_words, word_pattern

DECISIVE = 90  # minimum weight of a statement of the machine or its scheduler
SPECIFIC = 50  # minimum weight of a specific cause; below, only something went wrong
DIGITS = b"0123456789"
# Words of lines that are relevant without a signature: exit codes, tracebacks, tables, Xids.
_OTHER_KEYWORDS = (
    "exit", "killed", "terminated", "aborted", "bus error", "segmentation", "signal", "traceback",
    "above exception", "following error", "exception i", "xid",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """A text pattern and its meaning."""

    id: str
    category: str
    role: str  # root, symptom, cascade, or fact (known, but neither)
    weight: int
    regex: re.Pattern[str]
    owner: str = ""
    retry: str = ""
    source: str = ""
    field: bool = False  # matches also as the value of a field
    needs: str = ""  # "error": only in an exception or an error line
    unless: re.Pattern[str] | None = None  # a pattern which shows that it has not happened


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """All signatures by decreasing weight."""
    lines = Path(__file__).with_name("signatures.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line]
    parsed = [_signature(row) for row in rows]
    return tuple(sorted(parsed, key=lambda signature: -signature.weight))


def _signature(row: dict[str, Any]) -> Signature:
    patterns: dict[str, Any] = {
        key: re.compile(row[key]) for key in ("regex", "unless") if key in row
    }
    fields: dict[str, Any] = {**row, **patterns}
    return Signature(**fields)


class _KeywordIndex:
    """Which signatures a text may match, by the words in it."""

    def __init__(self) -> None:
        words = {signature: required_words(signature.regex.pattern) for signature in signatures()}
        keywords = {*_OTHER_KEYWORDS, *(word for required in words.values() for word in required)}
        self._words = _OverlappingSearch(keywords)
        self._signatures: dict[bytes, set[int]] = {}
        for number, signature in enumerate(signatures()):
            for word in words[signature]:
                self._signatures.setdefault(self._words.stem(word), set()).add(number)
        self._cores = _OverlappingSearch(map(rarest_part, keywords))
        self._full_words: dict[bytes, set[bytes]] = {}
        for word in keywords:
            bare = word.encode().translate(None, DIGITS)
            self._full_words.setdefault(self._cores.stem(rarest_part(word)), set()).add(bare)

    def candidates(self, text: str) -> list[Signature]:
        numbers: set[int] = set()
        for stem in self._words.stems(text.lower().encode("utf-8", "replace")):
            numbers |= self._signatures.get(stem, set())
        return [signatures()[number] for number in sorted(numbers)]

    def hints(self, word: bytes) -> tuple[bytes, ...]:
        texts = (self._full_words[stem] for stem in self._cores.stems(word))
        return tuple(set().union(*texts))


class _OverlappingSearch:
    """Finds overlapping words in a text; of words with a common start, the shortest."""

    def __init__(self, words: Iterable[str]) -> None:
        self._first_match = word_pattern(words)
        self._all = re.compile(b"(?=(" + self._first_match.pattern + b"))")

    def stem(self, word: str) -> bytes:
        match = self._first_match.match(word.encode())
        assert match is not None, word
        return match[0]

    def stems(self, text: bytes) -> set[bytes]:
        return set(self._all.findall(text)) if self._first_match.search(text) else set()


@functools.cache
def _index() -> _KeywordIndex:
    return _KeywordIndex()


def hints(word: bytes) -> tuple[bytes, ...]:
    """The words, one of which a relevant line with this word must contain; often none.

    All in lower case without digits.
    """
    return _index().hints(word)


def match(text: str, *, is_error: bool, is_config_echo: bool) -> Signature | None:
    """The matching signature of the largest weight."""
    for signature in _index().candidates(text):
        if (is_config_echo and not signature.field) or (
            signature.needs == "error" and not is_error
        ):
            continue
        if signature.regex.search(text) and (
            signature.unless is None or not signature.unless.search(text)
        ):
            return signature
    return None
