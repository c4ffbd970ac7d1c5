"""The words that a pattern requires."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.launch.failures.keywords import rarest_part, required_words, word_pattern


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("out of memory", {"out of memory"}),
        ("[Oo]ut of memory", {"out of memory"}),
        ("killed|evicted", {"killed", "evicted"}),
        (r"\bspot (?:instance )?interruption", {"spot instance interruption", "spot interruption"}),
        (r"Xid .{0,9}: \d+", {"xid "}),
        (r"(?:abc|d.*efg)hijk", {"hijk"}),
        (r"status \d+ (?:refused|reset)", {" refused", " reset"}),
        ("(?i:DeadLine)", {"deadline"}),
        (r"\d+", set()),
    ],
)
def test_required(pattern: str, words: set[str]) -> None:
    assert required_words(pattern) == words


@settings(derandomize=True, deadline=None)
@given(st.from_regex(r"[a-c]{1,3}(?:x(?:yz|w)?|[Qq]r+)(?:\d+ (?:foo|bar))?", fullmatch=True))
def test_every_match_has_one_of_them(text: str) -> None:
    pattern = r"[a-c]{1,3}(?:x(?:yz|w)?|[Qq]r+)(?:\d+ (?:foo|bar))?"
    words = required_words(pattern)
    assert not words or any(word in text.lower() for word in words)


def test_the_finder_finds_each_word() -> None:
    words = ["error", "errno", "no space", "no such", "err"]
    matches = word_pattern(words)
    assert all(matches.search(f"x {word} y".encode()) for word in words)
    assert matches.search(b"nothing of the kind") is None


def test_core() -> None:
    assert rarest_part("[errno 28] no space") == "[errno"
    assert rarest_part("node is not ready") in ("node", "ready")
    assert re.search(r"\d", rarest_part("port 29500 taken")) is None
