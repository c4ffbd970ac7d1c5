"""The questions on a real Spark of two workers, beside DuckDB: `make test-spark`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs a Spark: make test-spark")

from pyspark.sql import SparkSession

from headway.errors import HeadwayError
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES, build_query
from headway.fleet.store.compaction import compact
from headway.fleet.store.manifest import commit_marker
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import QueryResult, run_query
from headway.sim.fleet.scenario import make_scenario, slice_name
from headway.sim.fleet.simulation import simulate
from tests.support import codes, has_code, wait_until
from tests.unit.fleet.store_rows import merge_rows, run_rows

pytestmark = [
    pytest.mark.timeout(600),
    # Said by pyspark and pandas of their own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning"),
]
SLICES = ("plain", "team,week", "month,own,model")


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """A master and two workers, each a process of its own."""
    made = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Some days of a fleet, compacted; then runs that are written again, and one half written."""
    found = Store(str(tmp_path_factory.mktemp("a [b] {c}") / "store"))
    simulate(found, make_scenario(7, 400, 9))
    found.write(merge_rows(run_rows("twice"), run_rows("once")), as_of=10.0)
    compact(found, grace_s=0)
    found.write(run_rows("twice", hours=3, team="ads"), as_of=20.0)
    found.write(run_rows("once", hours=5), as_of=5.0)  # an old copy
    killed = found.write(run_rows("killed"))
    found.files.delete(commit_marker(killed))
    return found


def by(name: str, slices: str) -> tuple[str, ...]:
    own = QUERIES[name].dimensions[:1]
    words = () if slices == "plain" else tuple(slices.split(","))
    return tuple(part for word in words for part in (own if word == "own" else (word,)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def compare(spark: QueryResult, duckdb: QueryResult) -> None:
    assert spark.rows.column_names == duckdb.rows.column_names
    mine, theirs = spark.rows.to_pylist(), duckdb.rows.to_pylist()
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert not [
            (name, one[name], other[name]) for name in one if not same(one[name], other[name])
        ]


def test_it_is_a_cluster(session: SparkSession) -> None:
    context: Any = session.sparkContext._jsc
    # Two workers, and who asks.
    wait_until(lambda: context.sc().getExecutorMemoryStatus().size() == 3, 120, 0.2)


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("name", QUERIES)
def test_spark_and_duckdb_give_equal_answers(
    name: str, slices: str, store: Store, session: SparkSession
) -> None:
    put = build_query(name, Filter(by(name, slices)))
    found = run_query(store, put, session=session)
    assert found.rows.num_rows
    compare(found, run_query(store, put))


def test_a_stretch_of_time_of_some_runs(store: Store, session: SparkSession) -> None:
    first = min(file.day for file in store.data_files() if file.table == "hours")
    since = datetime.fromisoformat(first) + timedelta(days=2, hours=5)
    until = since + timedelta(days=3)
    asked = Filter(("day",), since, until, (("team", slice_name(0)[0]),), 2)
    put = build_query("ett", asked)
    told = run_query(store, put, since=since, until=until, session=session)
    assert told.rows.num_rows == 2
    compare(told, run_query(store, put, since=since, until=until))


def test_of_each_attempt_the_newest_rows_count(store: Store, session: SparkSession) -> None:
    def walls(tables: Any) -> Any:
        runs = tables["runs"]
        return runs.filter(runs.run_id.isin(["twice", "once", "killed"])).select("run_id", "wall_s")

    rows = run_query(store, walls, session=session).rows.to_pylist()
    assert sorted((row["run_id"], row["wall_s"]) for row in rows) == [
        ("once", 3600.0),
        ("twice", 3 * 3600.0),
    ]
    assert not [one for one in session.catalog.listTables() if one.name.startswith("files_")]


def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, session: SparkSession) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(run_rows("a"))
    store.write(run_rows("b"))
    (damaged, *_) = [file for file in store.data_files() if file.table == "hours"]
    Path(store.files.path(damaged.name)).write_bytes(b"PAR1 not PAR1")
    put = build_query("ett", Filter())
    told = run_query(store, put, session=session)
    assert told.rows["jobs"].to_pylist() == [1]
    (note,) = told.notes
    assert codes(note) == ["file-damaged"] and store.files.path(damaged.name) in note


def test_what_is_not_of_the_files_is_one_sentence(store: Store, session: SparkSession) -> None:
    def wrong(tables: Any) -> Any:
        runs = tables["runs"]
        return runs.mutate(bad=runs.run.cast("int64"))

    with pytest.raises(HeadwayError, check=has_code("store-unreadable")) as error:
        run_query(store, wrong, session=session)
    assert "\n" not in str(error.value)
