"""Sharded tables from one plan, on real ranks: equal to what torch gathers, and never a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
TOGETHER = "equal_metadata,collectives_of_sharing,dtensor,disagreement,cached,other_group"


def run(folder: Path, world: int, checks: str) -> list[tuple[int, Any]]:
    """The exit status of each rank, and what it says."""
    command = [sys.executable, "-m", "tests.integration.sharding.checks", checks]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)],
            cwd=ROOT,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = []
    for number, rank in enumerate(ranks):
        said = folder / f"said-{number}.json"
        assert said.exists() or rank.returncode == 9, errors[number]
        found.append((rank.returncode, json.loads(said.read_text()) if said.exists() else None))
    return found


@pytest.fixture(
    scope="module",
    params=[
        2,
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(8, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All checks that end well, in one group."""
    found = run(tmp_path_factory.mktemp("ranks"), request.param, TOGETHER)
    assert [status for status, _ in found] == [0] * request.param
    return [words for _, words in found]


def test_metadata_is_what_torch_gathers(said: list[Any]) -> None:
    for words in said:
        for collectives, tables, properties in words["equal_metadata"].values():
            assert collectives == {}
            assert all(tables.values()), tables
            assert properties


def test_sharing_is_one_broadcast_or_two_for_any_number_of_tables(said: list[Any]) -> None:
    one = [{"broadcast": 1, "all_reduce": 1}, True]
    two = [{"broadcast": 2, "all_reduce": 1}, True]
    for words in said:
        assert words["collectives_of_sharing"] == [one, one, two]


def test_dtensors_have_the_spec_that_distributing_gives(said: list[Any]) -> None:
    for words in said:
        collectives, tables, refused = words["dtensor"]
        assert collectives == {}
        assert all(all(checks) for checks in tables.values()), tables
        assert refused.startswith("table 't' cannot be a DTensor: it needs even parts")


def test_all_ranks_hear_of_a_disagreement(said: list[Any]) -> None:
    disagrees = "HeadwayError: rank 1 disagrees with the plan of rank 0: "
    for rank, words in enumerate(said):
        told = words["disagreement"]
        assert (
            told["dtype"] == f"{disagrees}table 'b' has dtype float16 here and float32 in the plan"
        )
        assert told["missing"] == told["plan"] == f"{disagrees}table 'b' is not here"
        assert told["placement"] == f"{disagrees}table 'a' is sharded otherwise here"
        assert told["sound"] == ""
        world = len(said)
        failed = "UsageError: " if rank == 0 else "UsageError: rank 0 could not make the plan: "
        assert told["world"] == (
            f"{failed}the plan is for {world + 1} ranks, and the group has {world}"
        )
        assert told["memory"].startswith(f"{failed}the tables need 320 B")
        assert told["nothing"] == f"{failed}rank 0 has no plan to share"


def test_rank_0_alone_looks_into_the_cache(said: list[Any]) -> None:
    for rank, words in enumerate(said):
        hashes, looked = words["cached"]
        assert len({*hashes, *said[0]["cached"][0]}) == 1
        assert looked == (rank == 0)


def test_another_group_than_the_world(said: list[Any]) -> None:
    outside, *members = [words["other_group"] for words in said]
    assert outside == "rank 0 is not in the group that shares a plan"
    assert all(all(tables.values()) for tables in members), members


def test_the_death_of_rank_0_is_told(tmp_path: Path) -> None:
    died, other = run(tmp_path, 2, "killed")
    assert died == (9, None)
    assert other[1]["killed"].startswith("the ranks could not share the plan: ")


def test_a_rank_that_never_comes_is_waited_for_as_long_as_told(tmp_path: Path) -> None:
    first, last = run(tmp_path, 2, "stuck")
    assert first[1]["stuck"].startswith("the ranks could not share the plan: ")
    assert last[1]["stuck"] == "waited"
