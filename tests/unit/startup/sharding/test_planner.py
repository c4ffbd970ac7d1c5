"""The planner: limits, balance, determinism, and errors."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.startup.sharding import planner
from headway.startup.sharding.planner import balance, plan
from headway.startup.sharding.sharding_plan import SPLITS, Shard, ShardingPlan, Table
from tests.support import Golden, examples, has_code


def mixed(count: int, seed: int = 0) -> list[Table]:
    pick = random.Random(seed)
    return [
        Table(
            f"t{i}",
            rows=int(10 ** pick.uniform(2, 6)),
            dim=pick.choice([16, 64, 128]),
            dtype=pick.choice(["float32", "float16"]),
            lookups=pick.choice([1, 5, 20, 80]),
        )
        for i in range(count)
    ]


def test_memory_and_load_of_a_table() -> None:
    table = Table("t", 100, 8, "float16", lookups=10, state=4)
    assert table.memory((100, 8)) == 100 * 8 * (2 + 4)
    assert table.load((100, 8)) == (10 + 1) * 8 * 2  # ten rows read, one sent
    assert table.load((50, 8)) == (5 + 1) * 8 * 2  # half of the reads; each part sends a row
    assert table.load((100, 4)) == (10 + 1) * 4 * 2
    assert table.load((0, 8)) == 0
    rows = Table("t", 100, 8, "float16", lookups=10, pooled=False)
    assert rows.load((50, 8)) == (5 + 5) * 8 * 2


def test_balance_is_counted_by_rank() -> None:
    table = Table("t", 10, 4)
    shards = (Shard("t", (0, 0), (8, 4), 1), Shard("t", (8, 0), (2, 4), 0))
    result = balance(ShardingPlan((table,), shards, 3))
    assert result.memory == (32, 128, 0)
    assert result.load == (19.2, 28.8, 0.0)
    assert result.memory_ratio == 128 / (160 / 3)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("count", [26, 200])
def test_many_tables_are_balanced(count: int, ranks: int) -> None:
    result = balance(plan(mixed(count), ranks))
    bound = 1.02 if count == 200 else 1.25
    assert result.memory_ratio < bound
    assert result.load_ratio < bound


def test_refining_swaps_what_the_greedy_way_got_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = enumerate((3, 3, 2, 2, 2))
    tables = [Table(f"t{i}", rows, 1, lookups=0, split="table") for i, rows in sizes]
    assert balance(plan(tables, 2)).memory == (24, 24)
    monkeypatch.setattr(planner, "TRIALS", 0)
    assert sorted(balance(plan(tables, 2)).memory) == [20, 28]


def test_it_is_the_same_every_time() -> None:
    assert plan(mixed(60), 7).hash == plan(mixed(60), 7).hash


def test_a_large_table_is_cut() -> None:
    tables = [Table("large", 1_000_000, 16), *(Table(f"t{i}", 1000, 16) for i in range(10))]
    result = plan(tables, 4)
    assert len(result.of("large")) == 4
    assert {shard.sizes for shard in result.of("large")} == {
        (250_000, 16)
    }  # too narrow for columns
    assert [shard.rank for shard in result.of("large")] == [0, 1, 2, 3]
    wide = plan([Table("large", 1000, 256), Table("t", 1, 4)], 2)
    assert {shard.sizes for shard in wide.of("large")} == {(1000, 128)}
    rows = plan([Table("large", 1000, 256, pooled=False), Table("t", 1, 4)], 2)
    assert {shard.sizes for shard in rows.of("large")} == {(500, 256)}


def test_a_split_is_obeyed() -> None:
    tables = [
        Table("table", 1_000_000, 64, split="table"),
        Table("row", 10, 64, split="row"),
        Table("column", 10, 64, split="column"),
    ]
    result = plan(tables, 4)
    assert [shard.sizes for shard in result.of("table")] == [(1_000_000, 64)]
    assert [shard.sizes for shard in result.of("row")] == [(3, 64), (3, 64), (3, 64), (1, 64)]
    assert [shard.sizes for shard in result.of("column")] == [(10, 16)] * 4
    assert [shard.rank for shard in result.of("row")] == [0, 1, 2, 3]


def test_more_ranks_than_rows() -> None:
    result = plan([Table("t", 3, 2, split="row"), Table("one", 1, 1)], 8)
    assert len(result.of("t")) == 3
    assert len({shard.rank for shard in result.of("t")}) == 3
    assert len(result.of("one")) == 1


def test_no_tables_is_a_plan() -> None:
    assert plan([], 4) == ShardingPlan((), (), 4)


def test_memory_is_a_limit_on_each_rank() -> None:
    tables = mixed(40)
    whole = sum(table.memory((table.rows, table.dim)) for table in tables)
    limits = [whole // 2, whole // 3, whole // 3]
    result = balance(plan(tables, 3, memory=limits))
    assert all(used <= limit for used, limit in zip(result.memory, limits, strict=True))


def test_a_table_that_fits_on_no_rank_is_cut() -> None:
    result = plan([Table("t", 100, 4)], 4, memory=100 * 4 * 4 // 4)
    assert balance(result).memory == (400,) * 4


def test_what_is_missing_is_told(golden: Golden) -> None:
    def refused(code: str, table: Table, *more: Table, **options: Any) -> str:
        with pytest.raises(UsageError, check=has_code(code)) as error:
            plan([table, *more], **options)
        return f"{error.value}\n"

    large, never_cut = Table("t", 1000, 4), Table("t", 1000, 4, split="table")
    text = refused("tables-too-large", large, Table("u", 10, 4), world_size=2, memory=7000)
    text += refused("table-too-large", never_cut, world_size=4, memory=8000)
    text += refused("table-too-large", Table("t", 1, 1000), world_size=4, memory=[1000] * 4)
    golden("too_large.txt", text)


def test_wrong_use_is_told() -> None:
    with pytest.raises(UsageError, check=has_code("table-twice")):
        plan([Table("t", 1, 1), Table("t", 2, 2)], 2)
    with pytest.raises(UsageError, check=has_code("world-size-invalid")):
        plan([], 0)
    with pytest.raises(UsageError, check=has_code("memory-count-mismatch")):
        plan([], 2, memory=[1, 2, 3])


def test_the_limit_on_trials_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "TRIALS", 10)
    assert len(plan(mixed(50), 4).shards) >= 50


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.builds(
            Table,
            name=st.uuids().map(str),
            rows=st.integers(1, 3000),
            dim=st.integers(1, 300),
            dtype=st.sampled_from(["float32", "float16", "int8"]),
            lookups=st.floats(0, 100),
            pooled=st.booleans(),
            split=st.sampled_from(SPLITS),
        ),
        max_size=12,
        unique_by=lambda table: table.name,
    ),
    st.integers(1, 9),
)
def test_any_tables_on_any_ranks(tables: list[Table], ranks: int) -> None:
    """ShardingPlan checks that every table is covered; this checks one part per rank and table."""
    result = plan(tables, ranks)
    assert [table.name for table in result.tables] == [table.name for table in tables]
    for table in tables:
        memory_used = [shard.rank for shard in result.of(table.name)]
        assert len(memory_used) == len(set(memory_used))
    whole = sum(table.memory((table.rows, table.dim)) for table in tables)
    assert sum(balance(result).memory) == whole
