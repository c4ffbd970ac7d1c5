"""Tables, shards and plans: what they accept, and that a plan is the same after a journey."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from headway.errors import UsageError
from headway.startup.sharding.tables import Plan, Shard, Table, canonical, difference, uncollected

TABLE = Table("t", 10, 4)


def cut(*parts: tuple[int, int, int]) -> Plan:
    """A table of ten rows: (first row, rows, rank) for each part."""
    shards = tuple(Shard("t", (start, 0), (rows, 4), rank) for start, rows, rank in parts)
    return Plan((TABLE,), shards, 3)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": ""}, "a table's name is a word, not ''"),
        ({"rows": 0}, "table 't' has rows 0; give 1 or more"),
        ({"dim": 2.0}, "table 't' has dim 2.0; give 1 or more"),
        ({"lookups": -1.0}, "table 't' has lookups -1.0; give 0 or more"),
        ({"state": float("nan")}, "table 't' has state nan; give 0 or more"),
        ({"dtype": "complex64"}, "table 't' has dtype 'complex64'; one of float64, float32"),
        ({"split": "diagonal"}, "table 't' has split 'diagonal'; one of auto, table, row, column"),
    ],
)
def test_a_wrong_table_is_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UsageError) as error:
        Table(**{"name": "t", "rows": 10, "dim": 4, **fields})
    assert str(error.value).startswith(wrong)


def test_a_dtype_may_be_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    assert Table("t", 1, 1, torch.bfloat16) == Table("t", 1, 1, "bfloat16")


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([(0, 10, 3)], "a shard of table 't' is on rank 3 of 3"),
        ([(0, 10, -1)], "a shard of table 't' is on rank -1 of 3"),
        ([], "the shards of table 't' end at 0 of 10"),
        ([(0, 9, 0)], "the shards of table 't' end at 9 of 10"),
        ([(0, 5, 0), (6, 4, 1)], "the shards of table 't' overlap, or leave a gap at 5"),
        ([(0, 5, 0), (4, 6, 1)], "the shards of table 't' overlap, or leave a gap at 5"),
        ([(0, 10, 0), (0, 10, 1)], "the shards of table 't' overlap, or leave a gap at 10"),
        ([(0, 12, 0), (12, -2, 1)], "the shards of table 't' overlap, or leave a gap at 12"),
    ],
)
def test_shards_must_be_the_table(parts: list[tuple[int, int, int]], wrong: str) -> None:
    with pytest.raises(UsageError) as error:
        cut(*parts)
    assert str(error.value) == wrong


def test_a_plan_is_cut_along_one_dimension() -> None:
    corners = [Shard("t", (r, c), (5, 2), 0) for r in (0, 5) for c in (0, 2)]
    with pytest.raises(UsageError, match="cut along two dimensions"):
        Plan((TABLE,), tuple(corners), 1)


def test_parts_may_have_no_size_and_ranks_no_part() -> None:
    plan = cut((0, 10, 1), (10, 0, 2))
    assert plan.on(0) == ()
    assert [shard.sizes for shard in plan.on(2)] == [(0, 4)]


def test_names_are_distinct_and_known() -> None:
    with pytest.raises(UsageError, match="two tables are named 't'"):
        Plan((TABLE, TABLE), (), 1)
    with pytest.raises(UsageError, match="a shard of 'u', which is no table"):
        Plan((TABLE,), (Shard("u", (0, 0), (10, 4), 0),), 1)
    with pytest.raises(UsageError, match="the plan has no table 'u'"):
        cut((0, 10, 0)).of("u")


def test_a_plan_is_the_same_after_a_journey() -> None:
    plan = cut((0, 4, 2), (4, 6, 0))
    back = Plan.read(json.loads(canonical(plan.document())))
    assert back == plan
    assert back.hash == plan.hash != cut((0, 5, 2), (5, 5, 0)).hash
    taken = Plan.read(plan.document(), [TABLE])
    assert taken == plan and taken.tables[0] is TABLE


def test_a_hash_is_the_same_in_every_process() -> None:
    program = (
        "from headway.startup.sharding import Plan, Shard, Table; import sys;"
        "print(Plan((Table('t', 10, 4),), (Shard('t', (0, 0), (10, 4), 1),), 3).hash,"
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
        Plan.read(document)


def test_a_difference_is_told() -> None:
    a, b = Table("a", 10, 4), Table("b", 10, 4)
    assert difference([a, b], [a, b]) == ""
    assert difference([a], [a, b]) == "table 'b' is not here"
    assert difference([a, b], [a]) == "table 'b' is here only"
    assert difference([b, a], [a, b]) == "the order of the tables"
    other = Table("b", 11, 4)
    assert difference([a, other], [a, b]) == "table 'b' has rows 11 here and 10 in the plan"


def test_collection_is_left_as_it_was() -> None:
    import gc

    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
