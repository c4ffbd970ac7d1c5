"""Tables, shards and plans: validation, and round trips."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headway.errors import UsageError
from headway.startup.sharding.sharding_plan import (
    Shard,
    ShardingPlan,
    Table,
    canonical_json,
    difference,
    gc_paused,
)
from tests.support import Golden, has_code

TABLE = Table("t", 10, 4)


def cut(*parts: tuple[int, int, int]) -> ShardingPlan:
    """A table of ten rows: (first row, rows, rank) for each part."""
    shards = tuple(Shard("t", (start, 0), (rows, 4), rank) for start, rows, rank in parts)
    return ShardingPlan((TABLE,), shards, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("rows", 0),
        ("dim", 2.0),
        ("lookups", -1.0),
        ("state", float("nan")),
        ("dtype", "complex64"),
        ("split", "diagonal"),
    ],
)
def test_a_wrong_table_is_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, check=has_code("table-value-invalid")) as error:
        Table(**{"name": "t", "rows": 10, "dim": 4, field: value})
    assert error.value.fields["field"] == field


def test_a_dtype_may_be_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    assert Table("t", 1, 1, torch.bfloat16) == Table("t", 1, 1, "bfloat16")


@pytest.mark.parametrize(
    ("parts", "code", "at"),
    [
        ([(0, 10, 3)], "rank-out-of-range", None),
        ([(0, 10, -1)], "rank-out-of-range", None),
        ([], "shards-incomplete", 0),
        ([(0, 9, 0)], "shards-incomplete", 9),
        ([(0, 5, 0), (6, 4, 1)], "shards-not-contiguous", 5),
        ([(0, 5, 0), (4, 6, 1)], "shards-not-contiguous", 5),
        ([(0, 10, 0), (0, 10, 1)], "shards-not-contiguous", 10),
        ([(0, 12, 0), (12, -2, 1)], "shards-not-contiguous", 12),
    ],
)
def test_shards_must_be_the_table(
    parts: list[tuple[int, int, int]], code: str, at: int | None
) -> None:
    with pytest.raises(UsageError, check=has_code(code)) as error:
        cut(*parts)
    assert error.value.fields.get("at") == at


def test_a_plan_is_cut_along_one_dimension() -> None:
    corners = [Shard("t", (r, c), (5, 2), 0) for r in (0, 5) for c in (0, 2)]
    with pytest.raises(UsageError, check=has_code("shards-in-two-dimensions")):
        ShardingPlan((TABLE,), tuple(corners), 1)


def test_parts_may_have_no_size_and_ranks_no_part() -> None:
    plan = cut((0, 10, 1), (10, 0, 2))
    assert plan.on(0) == ()
    assert [shard.sizes for shard in plan.on(2)] == [(0, 4)]


def test_names_are_distinct_and_known() -> None:
    with pytest.raises(UsageError, check=has_code("table-twice")):
        ShardingPlan((TABLE, TABLE), (), 1)
    with pytest.raises(UsageError, check=has_code("shard-of-unknown-table")):
        ShardingPlan((TABLE,), (Shard("u", (0, 0), (10, 4), 0),), 1)
    with pytest.raises(UsageError, check=has_code("table-not-in-plan")):
        cut((0, 10, 0)).of("u")


def test_a_plan_is_the_same_after_a_journey() -> None:
    plan = cut((0, 4, 2), (4, 6, 0))
    back = ShardingPlan.read(json.loads(canonical_json(plan.document())))
    assert back == plan
    assert back.hash == plan.hash != cut((0, 5, 2), (5, 5, 0)).hash
    reused = ShardingPlan.read(plan.document(), [TABLE])
    assert reused == plan and reused.tables[0] is TABLE


def test_a_hash_is_the_same_in_every_process() -> None:
    program = (
        "from headway.startup.sharding import ShardingPlan, Shard, Table; import sys;"
        "print(ShardingPlan((Table('t', 10, 4),), (Shard('t', (0, 0), (10, 4), 1),), 3).hash,"
        "'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [cut((0, 10, 1)).hash, "False"]  # planning needs no torch


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"schema": 2},
        {"schema": 1, "world_size": 1, "tables": [["t", 10, 4]], "shards": []},
        {"schema": 1, "world_size": 1, "tables": [["t", 10, 4]], "shards": [[[0, 0, 0, 10]]]},
        {"schema": 1, "world_size": "1", "tables": [], "shards": []},
    ],
)
def test_what_is_no_plan_is_refused(document: Any) -> None:
    with pytest.raises(UsageError):
        ShardingPlan.read(document)


def test_a_difference_is_told(golden: Golden) -> None:
    a, b, other = Table("a", 10, 4), Table("b", 10, 4), Table("b", 11, 4)
    assert difference([a, b], [a, b]) == ""
    pairs = [([a], [a, b]), ([a, b], [a]), ([b, a], [a, b]), ([a, other], [a, b])]
    golden("differences.txt", "".join(f"{difference(*pair)}\n" for pair in pairs))


def test_collection_is_left_as_it_was() -> None:
    import gc

    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
