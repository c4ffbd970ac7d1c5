"""The words that every match of a regular expression contains, and a fast search for many words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

try:
    from re import _constants as _ops  # type: ignore[attr-defined,unused-ignore]
    from re import _parser  # type: ignore[attr-defined,unused-ignore]
except ImportError:  # before Python 3.11
    import sre_constants as _ops
    import sre_parse as _parser

MAX_TEXTS = 40  # texts that a part may stand for before it counts as any text
# Words that occur in every log, used only if there is no other word.
_COMMON_TEXT = """
    a access after all already an and are as at available batch be been before bit but by call
    checkpoint client config could current data dataset device did different do does down due
    event file files first for found from grad group had has have host if in inf input instances
    invalid is it iteration its job key known last left likely limit link load loaded loading
    local log loss made many max memory model module need new no node norm not number of on one
    open operation or other out output port process processes progress rank ranks read ready
    requires resource running same scale seconds send server set shard shards size space start
    started state status step tensor tensors test that the this time to total train training
    trial unknown up user using value values version wait waiting was were will with worker
    world write you
"""
COMMON_WORDS = frozenset(_COMMON_TEXT.split())

_TextSet = frozenset[str]


def required_words(pattern: str) -> _TextSet:
    """Lower-case words of which every matching text contains at least one; empty if unknown."""
    return _needed(_parser.parse(pattern)) or frozenset()


def word_pattern(words: Iterable[str]) -> re.Pattern[bytes]:
    """Finds any of the words in a lower-case line; as a tree, so their number hardly matters."""
    tree: dict[str, Any] = {}
    for word in words:
        at = tree
        for letter in word:
            at = at.setdefault(letter, {})
        at[""] = {}
    return re.compile(_as_regex(tree).encode())


def rarest_part(word: str) -> str:
    """The rarest part of a word without spaces and digits."""
    parts = re.sub(r"\d", "", word).split()
    words = [part for part in parts if re.search(r"[a-z]", part)] or parts
    return max(words, key=lambda part: (part not in COMMON_WORDS, len(part)), default="")


def _as_regex(tree: dict[str, Any]) -> str:
    if "" in tree:  # a shorter word ends here: a longer one adds nothing
        return ""
    parts = [re.escape(letter) + _as_regex(rest) for letter, rest in sorted(tree.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _needed(items: Sequence[Any]) -> _TextSet | None:
    """The most selective set of words that a sequence must contain."""
    candidates: list[_TextSet] = []
    run: _TextSet = frozenset({""})
    for op, value in items:
        texts = _texts(op, value)
        if texts is not None and len(texts) * len(run) <= MAX_TEXTS:
            run = frozenset(head + tail for head in run for tail in texts)
            continue
        candidates.append(run)
        run = frozenset({""})
        inner = _needed_within(op, value)
        if inner:
            candidates.append(inner)
    candidates.append(run)
    best = max(candidates, key=_worth)
    return best if _worth(best) else None


def _worth(words: _TextSet) -> int:
    """The smallest value of any of the words: its length, or almost nothing if common."""
    return min(
        1 if rarest_part(word) in COMMON_WORDS else 2 * len(rarest_part(word)) for word in words
    )


def _texts(op: Any, value: Any) -> _TextSet | None:
    """All texts that a part can stand for, in lower case; None if there are too many."""
    if op is _ops.LITERAL:
        return frozenset({chr(value).lower()}) if value < 128 else None
    if op in (_ops.AT, _ops.ASSERT, _ops.ASSERT_NOT):
        return frozenset({""})
    if op is _ops.IN and all(kind is _ops.LITERAL and code < 128 for kind, code in value):
        return frozenset(chr(code).lower() for _, code in value)
    if op is _ops.SUBPATTERN:
        return _texts_of(value[-1])
    if op is _ops.BRANCH:
        return _union([_texts_of(branch) for branch in value[1]])
    if op in (_ops.MAX_REPEAT, _ops.MIN_REPEAT) and value[:2] == (0, 1):
        return _union([_texts_of(value[2]), frozenset({""})])
    return None


def _texts_of(items: Sequence[Any]) -> _TextSet | None:
    run: _TextSet = frozenset({""})
    for op, value in items:
        texts = _texts(op, value)
        if texts is None or len(texts) * len(run) > MAX_TEXTS:
            return None
        run = frozenset(head + tail for head in run for tail in texts)
    return run


def _needed_within(op: Any, value: Any) -> _TextSet | None:
    if op is _ops.SUBPATTERN:
        return _needed(value[-1])
    if op is _ops.BRANCH:
        return _union([_needed(branch) for branch in value[1]])
    if op in (_ops.MAX_REPEAT, _ops.MIN_REPEAT) and value[0] > 0:
        return _needed(value[2])
    return None


def _union(parts: Sequence[_TextSet | None]) -> _TextSet | None:
    if any(part is None for part in parts):
        return None
    return frozenset().union(*(part for part in parts if part is not None))
