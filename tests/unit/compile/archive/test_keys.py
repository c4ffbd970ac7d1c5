"""In which words two machines differ."""

from __future__ import annotations

from typing import Any

import pytest

from headway.compile.archive.keys import compat, difference, differing

from .made import FACTS


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({}, ""),
        ({"torch": "2.12.0"}, "torch is 2.13.0 here and was 2.12.0"),
        ({"cuda": "12.8"}, "CUDA is none here and was 12.8"),
        ({"gpu": ["NVIDIA H200"]}, "GPU is none here and was NVIDIA H200"),
        (
            {"isa": ["avx", "avx512f"]},
            "instructions here are without avx512f and with avx2+fma",
        ),
        ({"isa": ["avx"]}, "instructions here are with avx2+fma"),
        ({"env": {"TRITON_X": "1"}}, "TRITON_X is none here and was 1"),
        ({"new": "x"}, "new is none here and was x"),
        (
            {"python": "cpython-312", "torch": "2.12.0"},
            "torch is 2.13.0 here and was 2.12.0, Python is cpython-311 here and was cpython-312",
        ),
    ],
)
def test_the_difference_in_words(there: dict[str, Any], told: str) -> None:
    assert difference(FACTS, FACTS | there) == told
    assert (compat(FACTS) == compat(FACTS | there)) == (not told)


def test_where_torch_lies_makes_no_other_key() -> None:
    assert compat(FACTS) == compat(FACTS | {"place": ["/elsewhere", "/usr"]})
    assert differing(FACTS, FACTS | {"place": None}) == []


@pytest.mark.parametrize("junk", [None, 3, [], "x", {"a": []}, [[1]], {"env": {"a": {}}}])
def test_words_for_whatever_a_store_says(junk: Any) -> None:
    """The facts of other machines are not signed; they are only talked about."""
    for name in FACTS:
        assert difference(FACTS, FACTS | {name: junk}) or FACTS[name] == junk or name == "place"
