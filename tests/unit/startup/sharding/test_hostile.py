"""Damaged and malicious plan caches: a new plan is made."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.startup.sharding.plan_cache import PlanCache
from headway.startup.sharding.sharding_plan import ShardingPlan, Table, digest
from tests.mutations import altered, bent

TABLES = [Table("a", 100, 8), Table("b", 10, 8, "float16"), Table("c", 40, 64)]


def check(folder: Path, count: int) -> None:
    chance = random.Random(count)
    cache = PlanCache(folder)
    plan = cache.plan(TABLES, 2)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for number in range(count):
        document = json.loads(whole)
        if number % 3 == 0:
            path.write_bytes(bent(whole, chance))
        elif number % 3 == 1:
            path.write_text(json.dumps(altered(document, chance)))
        else:  # as if it had been written so
            document["plan"] = altered(document["plan"], chance)
            try:
                document["hash"] = digest(document["plan"])
            except ValueError:  # numbers that JSON has not
                document["hash"] = "0" * 64
            path.write_text(json.dumps(document))
            _read(document["plan"])
        again = cache.plan(TABLES, 2)
        assert again.tables == plan.tables and again.world_size == 2
        path.write_bytes(whole)
    assert cache.plan(TABLES, 2) == plan and [path] == list(folder.iterdir())


def _read(document: object) -> None:
    """Other ranks read the plan of rank 0 with the same checks."""
    try:
        plan = ShardingPlan.read(document)
    except UsageError as error:
        assert error.code
    else:
        assert all(plan.of(table.name) for table in plan.tables if table.rows and table.dim)
        assert plan.document()


def test_damaged_plans(tmp_path: Path) -> None:
    check(tmp_path, 90)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_thousands_of_damaged_plans(tmp_path: Path) -> None:
    check(tmp_path, 3000)


@pytest.mark.timeout(30)
def test_a_pipe_in_the_place_of_a_plan(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    plan = cache.plan(TABLES, 2)
    (path,) = tmp_path.iterdir()
    path.unlink()
    os.mkfifo(path)
    assert cache.plan(TABLES, 2) == plan and path.is_file()
