"""The questions on ClickHouse's own engine, beside DuckDB: `make test-clickhouse`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("chdb", reason="needs a ClickHouse: make test-clickhouse")

from chdb.session import Session

from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES, build_query
from headway.fleet.schema import TABLES
from headway.fleet.store.arrow import arrow_schema, utc_datetime
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from headway.sim.fleet.scenario import make_scenario
from headway.sim.fleet.simulation import simulate
from tests.unit.fleet.store_rows import run_rows

pytestmark = [
    pytest.mark.timeout(300),
    # Said by chdb of its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Some days of a fleet, and a run of which no label is known."""
    found = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    simulate(found, make_scenario(7, 400, 9))
    found.write(run_rows("bare"))
    return found


@pytest.fixture(scope="module")
def clickhouse(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The tables of the store as tables of a ClickHouse."""
    import pyarrow.parquet as pq

    folder: Path = tmp_path_factory.mktemp("tables")
    session = Session()
    session.query("CREATE DATABASE fleet")
    session.query("USE fleet")
    for name in TABLES:
        path = folder / f"{name}.parquet"
        pq.write_table(run_query(store, lambda tables, name=name: tables[name]).rows, path)
        session.query(
            f"CREATE TABLE {name} ENGINE = MergeTree ORDER BY tuple() "
            f"AS SELECT * FROM file('{path}', Parquet)"
        )
    yield session
    session.close()


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, datetime):  # ClickHouse hands times to Arrow as seconds
        return utc_datetime(mine) == theirs if isinstance(mine, int) else bool(mine == theirs)
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return bool(mine == theirs)


@pytest.mark.parametrize("slices", [(), ("team", "week"), ("month", "own", "model")])
@pytest.mark.parametrize("name", QUERIES)
def test_clickhouse_and_duckdb_give_equal_answers(
    name: str, slices: tuple[str, ...], store: Store, clickhouse: Session
) -> None:
    import ibis

    own = QUERIES[name].dimensions[:1]
    by = tuple(part for one in slices for part in (own if one == "own" else (one,)))
    put = build_query(name, Filter(by))
    unbound = {
        key: ibis.table(ibis.schema(arrow_schema(table)), name=key) for key, table in TABLES.items()
    }
    sql = str(ibis.to_sql(put(unbound), dialect="clickhouse"))
    mine = clickhouse.query(sql, "ArrowTable").to_pylist()
    theirs = run_query(store, put).rows.to_pylist()
    assert mine and len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert not [
            (column, one[column], other[column])
            for column in other
            if not same(one[column], other[column])
        ]
