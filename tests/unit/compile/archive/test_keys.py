"""In which words two machines differ."""

from __future__ import annotations

from typing import Any

import pytest

from headway.compile.archive.keys import compat, describe_difference, differing_facts
from tests.support import Golden
from tests.unit.compile.archive.made import FACTS

OTHERS: list[dict[str, Any]] = [
    {"torch": "2.12.0"},
    {"cuda": "12.8"},
    {"gpu": ["NVIDIA H200"]},
    {"isa": ["avx", "avx512f"]},
    {"isa": ["avx"]},
    {"env": {"TRITON_X": "1"}},
    {"new": "x"},
    {"python": "cpython-312", "torch": "2.12.0"},
]


def test_the_difference_in_words(golden: Golden) -> None:
    golden("differences.txt", "".join(f"{describe_difference(FACTS, FACTS | o)}\n" for o in OTHERS))


@pytest.mark.parametrize("other", OTHERS)
def test_a_machine_that_differs_has_another_key(other: dict[str, Any]) -> None:
    assert set(differing_facts(FACTS, FACTS | other)) == set(other)
    assert compat(FACTS) != compat(FACTS | other)


def test_the_same_machine_has_the_same_key() -> None:
    assert describe_difference(FACTS, dict(FACTS)) == "" and compat(FACTS) == compat(dict(FACTS))


def test_where_torch_lies_makes_no_other_key() -> None:
    assert compat(FACTS) == compat(FACTS | {"place": ["/elsewhere", "/usr"]})
    assert differing_facts(FACTS, FACTS | {"place": None}) == []


@pytest.mark.parametrize("junk", [None, 3, [], "x", {"a": []}, [[1]], {"env": {"a": {}}}])
def test_words_for_whatever_a_store_says(junk: Any) -> None:
    """The facts of other machines are not signed; they are only talked about."""
    for name in FACTS:
        assert (
            describe_difference(FACTS, FACTS | {name: junk})
            or FACTS[name] == junk
            or name == "place"
        )
