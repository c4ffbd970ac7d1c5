"""Sharded tables from one plan, on real ranks: equal to what torch gathers, without hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import ForkServer, Golden, probe_env

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
TOGETHER = "equal_metadata,collectives_of_sharing,dtensor,disagreement,cached,other_group"


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.integration.sharding import checks
checks.fork({checks!r}, {world}, Path.cwd())
"""


def run(forks: ForkServer, folder: Path, world: int, checks: str) -> list[tuple[int, Any]]:
    """The exit status and answers of each rank."""
    (folder / "script.py").write_text(SCRIPT.format(root=str(ROOT), checks=checks, world=world))
    (folder / "journal").mkdir()
    code, stderr = forks.run(folder / "script.py", env=probe_env(folder / "journal"), timeout=280)
    assert code == 0, stderr
    results = []
    for number, status in enumerate(json.loads((folder / "ended.json").read_text())):
        said = folder / f"said-{number}.json"
        assert said.exists() or status == 9, stderr
        results.append((status, json.loads(said.read_text()) if said.exists() else None))
    return results


@pytest.fixture(
    scope="module",
    params=[
        2,
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(8, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
    ],
)
def said(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fork_server: ForkServer,
) -> list[Any]:
    """All checks that succeed, in one group."""
    results = run(fork_server, tmp_path_factory.mktemp("ranks"), request.param, TOGETHER)
    assert [status for status, _ in results] == [0] * request.param
    return [words for _, words in results]


def test_metadata_is_what_torch_gathers(said: list[Any]) -> None:
    for words in said:
        for collectives, tables, properties in words["equal_metadata"].values():
            assert collectives == {}
            assert all(tables.values()), tables
            assert properties


def test_sharing_is_one_broadcast_or_two_for_any_number_of_tables(said: list[Any]) -> None:
    single = [{"broadcast": 1, "all_reduce": 1}, True]
    two = [{"broadcast": 2, "all_reduce": 1}, True]
    for words in said:
        assert words["collectives_of_sharing"] == [single, single, two]


def test_dtensors_have_the_spec_that_distributing_gives(said: list[Any]) -> None:
    for words in said:
        collectives, tables, refused = words["dtensor"]
        assert collectives == {}
        assert all(all(checks) for checks in tables.values()), tables
        assert refused == "table-not-even"


def test_all_ranks_hear_of_a_disagreement(said: list[Any], golden: Golden) -> None:
    for rank, words in enumerate(said):
        messages = words["disagreement"]
        for name in ("dtype", "missing", "plan", "placement"):
            assert messages[name][:3] == ["HeadwayError", "plans-disagree", 1]
        assert messages["sound"] == []
        assert messages["world"][:2] == ["UsageError", "plan-world-size-mismatch"]
        assert messages["memory"][:2] == ["UsageError", "tables-too-large"]
        assert messages["nothing"][:2] == ["UsageError", "plan-missing"]
        if len(said) == 2:
            text = "".join(
                f"{name}: {message[-1]}\n" for name, message in messages.items() if message
            )
            golden(f"disagreement_{rank}.txt", text)


def test_rank_0_alone_looks_into_the_cache(said: list[Any]) -> None:
    for rank, words in enumerate(said):
        hashes, looked = words["cached"]
        assert len({*hashes, *said[0]["cached"][0]}) == 1
        assert looked == (rank == 0)


def test_another_group_than_the_world(said: list[Any]) -> None:
    outside, *members = [words["other_group"] for words in said]
    assert outside == "rank-not-in-group"
    assert all(all(tables.values()) for tables in members), members


def test_the_death_of_rank_0_is_told(fork_server: ForkServer, tmp_path: Path) -> None:
    died, other = run(fork_server, tmp_path, 2, "killed")
    assert died == (9, None)
    assert other[1]["killed"] == "plan-not-shared"


def test_a_rank_that_never_comes_is_waited_for_as_long_as_told(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    first, last = run(fork_server, tmp_path, 2, "stuck")
    assert first[1]["stuck"] == "plan-not-shared"
    assert last[1]["stuck"] == "waited"
