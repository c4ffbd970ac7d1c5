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
from headway.fleet.compact import compact
from headway.fleet.engine import Answer, ask
from headway.fleet.log import commit
from headway.fleet.queries import QUERIES, question
from headway.fleet.queries.slices import Asked
from headway.fleet.simulate.fleet import simulate
from headway.fleet.simulate.plan import plan, slice_name
from headway.fleet.store import Store
from tests.support import codes, has_code, wait_until
from tests.unit.fleet.made import rows_of, together

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
    simulate(found, plan(7, 400, 9))
    found.write(together(rows_of("twice"), rows_of("once")), as_of=10.0)
    compact(found, grace_s=0)
    found.write(rows_of("twice", hours=3, team="ads"), as_of=20.0)
    found.write(rows_of("once", hours=5), as_of=5.0)  # an old copy
    killed = found.write(rows_of("killed"))
    found.place.delete(commit(killed))
    return found


def by(name: str, slices: str) -> tuple[str, ...]:
    own = QUERIES[name].own[:1]
    words = () if slices == "plain" else tuple(slices.split(","))
    return tuple(part for word in words for part in (own if word == "own" else (word,)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


def compare(spark: Answer, duckdb: Answer) -> None:
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
    put = question(name, Asked(by(name, slices)))
    found = ask(store, put, session=session)
    assert found.rows.num_rows
    compare(found, ask(store, put))


def test_a_stretch_of_time_of_some_runs(store: Store, session: SparkSession) -> None:
    first = min(file.day for file in store.files() if file.table == "hours")
    since = datetime.fromisoformat(first) + timedelta(days=2, hours=5)
    until = since + timedelta(days=3)
    asked = Asked(("day",), since, until, (("team", slice_name(0)[0]),), 2)
    put = question("ett", asked)
    told = ask(store, put, since=since, until=until, session=session)
    assert told.rows.num_rows == 2
    compare(told, ask(store, put, since=since, until=until))


def test_of_each_attempt_the_newest_rows_count(store: Store, session: SparkSession) -> None:
    def walls(tables: Any) -> Any:
        runs = tables["runs"]
        return runs.filter(runs.run_id.isin(["twice", "once", "killed"])).select("run_id", "wall_s")

    rows = ask(store, walls, session=session).rows.to_pylist()
    assert sorted((row["run_id"], row["wall_s"]) for row in rows) == [
        ("once", 3600.0),
        ("twice", 3 * 3600.0),
    ]
    assert not [one for one in session.catalog.listTables() if one.name.startswith("files_")]


def test_a_damaged_file_is_named_and_left_out(tmp_path: Path, session: SparkSession) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(rows_of("a"))
    store.write(rows_of("b"))
    (damaged, *_) = [file for file in store.files() if file.table == "hours"]
    Path(store.place.path(damaged.name)).write_bytes(b"PAR1 not PAR1")
    put = question("ett", Asked())
    told = ask(store, put, session=session)
    assert told.rows["jobs"].to_pylist() == [1]
    (note,) = told.notes
    assert codes(note) == ["file-damaged"] and store.place.path(damaged.name) in note


def test_what_is_not_of_the_files_is_one_sentence(store: Store, session: SparkSession) -> None:
    def wrong(tables: Any) -> Any:
        runs = tables["runs"]
        return runs.mutate(bad=runs.run.cast("int64"))

    with pytest.raises(HeadwayError, check=has_code("store-unreadable")) as error:
        ask(store, wrong, session=session)
    assert "\n" not in str(error.value)
