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

DECISIVE = 90  # from here on a word of the machine or of its scheduler
SPECIFIC = 50  # from here on it names a cause; below, only that something went wrong
DIGITS = b"0123456789"
# Words that tell of an end without being a signature: of exit codes, tracebacks, tables, Xids.
_OTHER_KEYWORDS = (
    "exit", "killed", "terminated", "aborted", "bus error", "segmentation", "signal", "traceback",
    "above exception", "following error", "exception i", "xid",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signature:
    """Words, and what they are taken to mean."""

    id: str
    category: str
    role: str  # root, symptom, cascade, or fact: known, but neither
    weight: int
    regex: re.Pattern[str]
    owner: str = ""
    retry: str = ""
    source: str = ""
    field: bool = False  # also where it stands as the value of a field
    needs: str = ""  # "error": only as an exception or said as an error
    unless: re.Pattern[str] | None = None  # what says that it has not happened


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """All of them, the weightiest first."""
    lines = Path(__file__).with_name("signatures.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines if line]
    made = [_signature(row) for row in rows]
    return tuple(sorted(made, key=lambda one: -one.weight))


def _signature(row: dict[str, Any]) -> Signature:
    patterns: dict[str, Any] = {
        key: re.compile(row[key]) for key in ("regex", "unless") if key in row
    }
    made: dict[str, Any] = {**row, **patterns}
    return Signature(**made)


class _KeywordIndex:
    """Which signatures a text may match at all, by the words that stand in it."""

    def __init__(self) -> None:
        words = {one: required_words(one.regex.pattern) for one in signatures()}
        every = {*_OTHER_KEYWORDS, *(word for found in words.values() for word in found)}
        self._each = _OverlappingSearch(every)
        self._numbers: dict[bytes, set[int]] = {}
        for number, one in enumerate(signatures()):
            for word in words[one]:
                self._numbers.setdefault(self._each.stem(word), set()).add(number)
        self._cores = _OverlappingSearch(map(rarest_part, every))
        self._whole: dict[bytes, set[bytes]] = {}
        for word in every:
            bare = word.encode().translate(None, DIGITS)
            self._whole.setdefault(self._cores.stem(rarest_part(word)), set()).add(bare)

    def candidates(self, text: str) -> list[Signature]:
        found: set[int] = set()
        for stem in self._each.stems(text.lower().encode("utf-8", "replace")):
            found |= self._numbers.get(stem, set())
        return [signatures()[number] for number in sorted(found)]

    def hints(self, word: bytes) -> tuple[bytes, ...]:
        found = (self._whole[stem] for stem in self._cores.stems(word))
        return tuple(set().union(*found))


class _OverlappingSearch:
    """Finds words in a text wherever they begin; each by the shortest of those that begin alike."""

    def __init__(self, words: Iterable[str]) -> None:
        self._one = word_pattern(words)
        self._all = re.compile(b"(?=(" + self._one.pattern + b"))")

    def stem(self, word: str) -> bytes:
        found = self._one.match(word.encode())
        assert found is not None, word
        return found[0]

    def stems(self, text: bytes) -> set[bytes]:
        return set(self._all.findall(text)) if self._one.search(text) else set()


@functools.cache
def _index() -> _KeywordIndex:
    return _KeywordIndex()


def hints(word: bytes) -> tuple[bytes, ...]:
    """The words that a line with this word would have to contain to tell of an end; often none.

    All in lower case and without digits.
    """
    return _index().hints(word)


def match(text: str, *, loud: bool, echo: bool) -> Signature | None:
    """The weightiest signature of a text; `loud` for errors, `echo` for fields and settings."""
    for one in _index().candidates(text):
        if (echo and not one.field) or (one.needs == "error" and not loud):
            continue
        if one.regex.search(text) and (one.unless is None or not one.unless.search(text)):
            return one
    return None
