"""The same tables and questions on a real PostgreSQL server."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.errors import HeadwayError, NewerSchema, UsageError
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES, build_query
from headway.fleet.store.parquet import Store
from headway.fleet.store.postgres import Database
from headway.serve.cache import StoreCache
from tests.support import codes, has_code, wait_until
from tests.unit.fleet.store_rows import START, merge_rows, run_rows
from tests.unit.fleet.test_queries import fleet

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
SERVER = shutil.which("postgres") or max(
    glob.glob("/usr/lib/postgresql/*/bin/postgres"), default=""
)
pytestmark = [
    pytest.mark.skipif(not SERVER, reason="no PostgreSQL server is installed"),
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("postgres"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder of its socket. It does not run as root."""
    root = os.geteuid() == 0
    person = pwd.getpwnam("nobody") if root else pwd.getpwuid(os.geteuid())
    folder = tmp_path_factory.mktemp("postgres")
    for above in (folder, *folder.parents[: len(folder.parents) - 2]) if root else ():
        above.chmod(above.stat().st_mode | 0o011)
    os.chown(folder, person.pw_uid, person.pw_gid)
    who: dict[str, Any] = {"user": person.pw_uid, "group": person.pw_gid} if root else {}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    binaries, data = Path(SERVER).resolve().parent, str(folder / "data")
    words = ["-D", data, "-A", "trust", "-U", "headway", "--no-sync"]
    subprocess.run([binaries / "initdb", *words], check=True, cwd=folder, **who, **quiet)
    words = ["-D", data, "-k", str(folder), "-h", ""]
    with subprocess.Popen([binaries / "postgres", *words], cwd=folder, **who, **quiet) as process:
        try:
            wait_until(lambda: _answers(str(folder)), 30, 0.05)
            yield str(folder)
        finally:
            process.send_signal(signal.SIGINT)


def _answers(folder: str) -> bool:
    try:
        psycopg.connect(f"postgresql://headway@/postgres?host={folder}").close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """An empty database."""
    return _create(server, request.node.name[:60])


def _create(server: str, name: str) -> str:
    address = f"postgresql://headway@/postgres?host={server}"
    with psycopg.connect(address, autocommit=True) as con:
        con.execute(f'CREATE DATABASE "{name}"')
    return f"postgresql://headway@/{name}?host={server}"


@pytest.fixture(scope="module")
def database(server: str) -> Database:
    database = Database(_create(server, "fleet"))
    database.write(fleet())
    return database


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCache]:
    """The same on DuckDB, one engine for all questions."""
    store = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    store.write(fleet())
    reading = StoreCache(store)
    yield reading
    reading.close()


def asked(database: Database, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = database.query(lambda tables: tables[table].select(*columns)).rows
    return sorted(zip(*(rows[name].to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("name", QUERIES)
def test_it_answers_as_duckdb_does(database: Database, reading: StoreCache, name: str) -> None:
    own = QUERIES[name].dimensions[:1]
    for told in (
        Filter(),
        Filter(by=("team", "week", *own)),
        Filter(by=("model",), since=START, where=(("team", "ads"),), limit=3),
    ):
        put = build_query(name, told)
        here, there = _plain(reading.rows(put)), _plain(database.query(put).rows.to_pylist())
        assert here and len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert other == pytest.approx(one)


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In one order; floats may differ in the last place, dates may not."""
    found = [
        {name: str(value) if name == "week" else value for name, value in row.items()}
        for row in rows
    ]
    return sorted(found, key=lambda row: [str(v) for v in row.values() if not _is_float(v)])


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def test_the_newest_counts_and_twice_is_once(url: str) -> None:
    database = Database(url)
    database.write(merge_rows(run_rows("a"), run_rows("b")), as_of=100.0)
    for _ in range(2):
        database.write(run_rows("a", hours=2), as_of=200.0)
    database.write(run_rows("a", hours=9), as_of=50.0)
    database.write(run_rows("b", attempt=1), as_of=200.0)
    assert asked(database, "runs", "run_id", "wall_s") == [("a", 7200.0), ("b", 3600.0)]
    assert (
        asked(database, "hours", "run_id", "attempt")
        == [("a", 0)] * 4 + [("b", 0)] * 2 + [("b", 1)] * 2
    )


def test_writers_at_once(url: str) -> None:
    """The first ones make the tables, all at the same time."""
    faults: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for hours in (1, 2, 3):
                Database(url).write(run_rows("same", hours=hours), as_of=float(hours))
                Database(url).write(run_rows(f"own{number}", hours=hours), as_of=float(hours))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    walls = asked(Database(url), "runs", "run_id", "wall_s")
    assert walls == sorted([*((f"own{n}", 10800.0) for n in range(6)), ("same", 10800.0)])
    assert len(asked(Database(url), "hours", "run_id")) == 7 * 6


def test_bad_input_is_a_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, check=has_code("store-not-found")):
        asked(Database(url), "runs", "run_id")
    assert main(["fleet", "compact", "--store", url]) == 2
    assert codes(capsys.readouterr().err) == ["store-not-files"]
    Database(url).write(run_rows("a"))
    with psycopg.connect(url) as con:
        con.execute("INSERT INTO headway.store VALUES (9)")
    with pytest.raises(NewerSchema, match=r"\b9\b"):
        asked(Database(url), "runs", "run_id")
    secret = Database("postgresql://ann:hush@127.0.0.1:9/none?connect_timeout=2")
    with pytest.raises(HeadwayError, check=has_code("store-unusable")) as error:
        secret.write(run_rows("a"))
    assert "postgresql://ann@127.0.0.1:9/none" in str(error.value)
    assert "hush" not in str(error.value)
