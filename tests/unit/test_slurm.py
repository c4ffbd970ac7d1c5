"""Output of Slurm commands: host lists, accelerators, numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.slurm import (
    MAX_HOSTS,
    count_gpus,
    count_gres_gpus,
    expand_hosts,
    json_number,
    json_tres,
    parse_tres,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-03,7],login,a[1-2]b", ["gpu01", "gpu02", "gpu03", "gpu7", "login", "a1b", "a2b"]),
        (
            "rack[1-2]node[01-02]",
            ["rack1node01", "rack1node02", "rack2node01", "rack2node02"],
        ),
        ("rack[0-1]n[0-2]", [f"rack{rack}n{node}" for rack in range(2) for node in range(3)]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101].a", ["n098.a", "n099.a", "n100.a", "n101.a"]),
        *((text, []) for text in ("", "None assigned", "(null)")),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[1-2", "n]", "n[]", "a,,b", ",", "a,", "n[2-1]", "n[x]", "n[1,]", "n[[1]]", "n[-1]"),
        *(f"n[0-{MAX_HOSTS}]", "n[0-999]n[0-999]n[0-999]", "n[0-99999999999999999999]"),
    ],
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


WORD = st.text("abz-.", min_size=1, max_size=4)
RANGE = st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4))


@given(st.lists(st.lists(WORD | RANGE, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_host_list_is_the_product_of_its_ranges(given_names: list[list[object]]) -> None:
    texts: list[str] = []
    expected: list[str] = []
    for parts in given_names:
        text, choices = "", []
        for part in parts:
            if isinstance(part, tuple):
                first, more, width = part
                low = f"{first:0{width}d}"
                text += f"[{low}-{first + more}]"
                choices.append([f"{n:0{len(low)}d}" for n in range(first, first + more + 1)])
            else:
                text += str(part)
                choices.append([str(part)])
        texts.append(text)
        expected += map("".join, itertools.product(*choices))
    assert expand_hosts(",".join(texts)) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("billing=3,cpu=8,gres/gpu=8,gres/gpu:a100=8,mem=1T", 8),
        ("gres/gpu:a100=4,gres/gpu:h100=4", 8),
        ("gres/gpu=8,gres/gpu:a100=4,gres/gpu:h100=4", 8),
        ("gres/gpu:1g.5gb=2", 2),
        ("gres/gpumem=80,gres/shard=4,cpu=8", 0),
        ("", 0),
    ],
)
def test_accelerators_of_trackable_resources(text: str, count: int) -> None:
    assert count_gpus(parse_tres(text)) == count


def test_accelerators_in_json() -> None:
    entries = [
        {"type": "cpu", "name": "", "count": 8},
        {"type": "gres", "name": "gpu:a100", "count": {"set": True, "number": 4}},
        {"type": "gres", "name": "gpu:h100", "count": 4},
    ]
    assert count_gpus(json_tres(entries)) == 8


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:4(IDX:0-3)", 4),
        ("gpu:a100:2(IDX:0,3),gpu:1g.5gb:1(IDX:4),nic:1", 3),
        ("gpu:a100:2(S:0-1)", 2),
        ("", 0),
    ],
)
def test_accelerators_of_a_node(text: str, count: int) -> None:
    assert count_gres_gpus(text) == count


def test_numbers() -> None:
    assert json_number(None) is None and json_number(3) == 3.0
    assert json_number({"set": True, "infinite": False, "number": 3}) == 3.0
    assert json_number({"set": False, "number": 0}) is None
