"""Cached plans: reused if nothing has changed, else made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UsageError
from headway.startup.sharding import plan_cache as module
from headway.startup.sharding import planner
from headway.startup.sharding.plan_cache import PlanCache
from headway.startup.sharding.sharding_plan import Table
from tests.support import has_code

TABLES = [Table("a", 100, 8), Table("b", 10, 8, "float16")]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of ranks of each plan that was made."""
    calls: list[int] = []
    real = planner.plan

    def counting(tables: Any, world_size: int, **options: Any) -> Any:
        calls.append(world_size)
        return real(tables, world_size, **options)

    monkeypatch.setattr(planner, "plan", counting)
    return calls


def test_a_plan_is_made_once(tmp_path: Path, made: list[int]) -> None:
    first = PlanCache(tmp_path / "plans").plan(TABLES, 2)
    assert PlanCache(tmp_path / "plans").plan(TABLES, 2) == first
    assert made == [2]
    assert [path.suffix for path in (tmp_path / "plans").iterdir()] == [".json"]


def test_what_it_depends_on_is_in_its_name(
    tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PlanCache(tmp_path)
    path.plan(TABLES, 2)
    assert path.plan(TABLES, 4).world_size == 4  # as after a change of the world size
    path.plan(TABLES[:1], 2)
    path.plan([*TABLES[:1], Table("b", 10, 8, "bfloat16")], 2)
    path.plan(TABLES, 2, memory=10_000)
    path.plan(TABLES, 2, memory=[10_000, 20_000])
    monkeypatch.setattr(module, "__version__", "99")
    path.plan(TABLES, 2)
    assert made == [2, 4, 2, 2, 2, 2, 2]
    path.plan(TABLES, 2)
    assert len(made) == 7


def damaged(content: bytes) -> list[bytes]:
    document = json.loads(content)
    moved = json.loads(content)
    moved["plan"]["shards"][0][0][0] = 1 - moved["plan"]["shards"][0][0][0]
    return [
        b"",
        content[: len(content) // 2],
        b"\xff" * 100,
        b"[" * 100_000,
        b"null",
        json.dumps({**document, "schema": 99}).encode(),
        json.dumps({**document, "asked": "another"}).encode(),
        json.dumps(moved).encode(),  # sound in itself, but not what was written
    ]


def test_a_damaged_file_is_made_again(tmp_path: Path, made: list[int]) -> None:
    cache = PlanCache(tmp_path)
    plan = cache.plan(TABLES, 2)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    wrong = damaged(good)
    for content in wrong:
        path.write_bytes(content)
        assert cache.plan(TABLES, 2) == plan
        assert path.read_bytes() == good
    assert len(made) == 1 + len(wrong)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert len(PlanCache(tmp_path / "file" / "below").plan(TABLES, 2).tables) == 2
    with pytest.raises(UsageError, check=has_code("plan-folder-is-a-file")):
        PlanCache(tmp_path / "file")
