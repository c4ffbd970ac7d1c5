"""The questions, on runs small enough to be counted by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.errors import UsageError
from headway.fleet.queries import pages
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.queries import QUERIES, build_query
from headway.fleet.store.parquet import Store
from headway.ledger.buckets import EFFECTIVE
from headway.serve.cache import StoreCache
from tests.support import Golden, has_code
from tests.unit.fleet.store_rows import START, merge_rows, run_rows

pytestmark = pytest.mark.xdist_group("questions")
WEEK = timedelta(days=7)


def fleet() -> dict[str, list[dict[str, Any]]]:
    """One run of 8 accelerators that trains half of the time, three of 1 that train always."""
    large = run_rows(
        "large",
        accelerators=8,
        leaves={EFFECTIVE: 1800.0, "waste.data_stall": 900.0, "recover.downtime": 900.0},
        team="ads",
        model="dlrm",
        time_to_start_s=100.0,
    )
    small = [
        run_rows(
            f"small{n}",
            accelerators=1,
            leaves={EFFECTIVE: 3600.0},
            team="feed" if n else "ads",
            start=START + n * WEEK,
            time_to_start_s=None if n == 2 else 10.0,
        )
        for n in range(3)
    ]
    tables = merge_rows(large, *small)
    key = {"run_id": "large", "attempt": 0}
    tables["attempts"][0]["time_to_recover_s"] = 300.0
    tables["failures"] = [
        {
            **key,
            "at": START,
            "category": category,
            "owner": "infra",
            "retry": "yes",
            "host": "n7",
            "accelerators": 8,
            "lost_s": 450.0,
            "time_to_recover_s": recover,
        }
        for category, recover in (("network", 450.0), ("network", None), ("gpu_hardware", 1350.0))
    ]
    tables["checkpoints"] = [
        {
            "run_id": run,
            "attempt": 0,
            "at": START,
            "step": step,
            "level": "disk",
            "blocked_s": blocked,
            "accelerators": size,
            "error": error,
        }
        for run, size, step, blocked, error in (
            ("large", 8, 1, 4.0, None),
            ("large", 8, 2, 2.0, "full"),
            ("small0", 1, 1, 9.0, None),
        )
    ]
    tables["compiles"] = [
        {
            "run_id": run,
            "attempt": 0,
            "at": START,
            "place": "f",
            "recompile": recompile,
            "cached": False,
            "ranks": size,
            "times": size,
            "seconds": seconds,
            "accelerators": size,
        }
        for run, size, recompile, seconds in (
            ("large", 8, False, 45.0),
            ("large", 8, True, 45.0),
            ("small0", 1, False, 10.0),
        )
    ]
    tables["nodes"] = [
        {
            "run_id": run,
            "attempt": 0,
            "host": host,
            "started_at": START,
            "ended_at": START,
            "accelerators": size,
            "wall_s": 3600.0,
            "accelerator_s": 3600.0 * size,
            "effective_s": 1800.0 * size,
            "failures": failures,
        }
        for run, host, size, failures in (
            ("large", "n7", 4, 1),
            ("large", "n8", 4, 0),
            ("small0", "n8", 1, 0),
        )
    ]
    return tables


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCache]:
    """One engine for all questions."""
    store = Store(str(tmp_path_factory.mktemp("fleet") / "store"))
    store.write(fleet())
    reading = StoreCache(store)
    yield reading
    reading.close()


def answer(reading: StoreCache, name: str, *by: str, **asked: Any) -> list[dict[str, Any]]:
    return reading.rows(build_query(name, Filter(by=by, **asked)))


def test_ett_by_accelerator_hours_and_by_jobs(reading: StoreCache) -> None:
    (row,) = answer(reading, "ett")
    assert (row["jobs"], row["accelerator_hours"]) == (4, 11.0)
    assert row["ett_percent"] == pytest.approx(100 * 7 / 11)
    assert row["ett_percent_by_jobs"] == pytest.approx(87.5)
    for weight in ("", "_by_jobs"):
        parts = [row[f"{side}_percent{weight}"] for side in ("ett", "idleness", "failure")]
        assert sum(parts) == pytest.approx(100.0)


def test_ett_by_team_and_week(reading: StoreCache) -> None:
    rows = answer(reading, "ett", "team", "week")
    assert [(r["team"], r["week"], r["jobs"]) for r in rows] == [
        ("ads", datetime(2026, 11, 2), 2),
        ("feed", datetime(2026, 11, 9), 1),
        ("feed", datetime(2026, 11, 16), 1),
    ]
    assert rows[0]["ett_percent"] == pytest.approx(100 * 5 / 9)


def test_only_what_fell_into_the_time_asked_for(reading: StoreCache) -> None:
    assert answer(reading, "ett", since=START + WEEK)[0]["jobs"] == 2
    assert answer(reading, "ett", until=START + WEEK)[0]["jobs"] == 2
    assert answer(reading, "tts", since=START + WEEK, until=START + 2 * WEEK)[0]["jobs"] == 1
    assert answer(reading, "ett", "team", since=START + 9 * WEEK) == []


def test_only_the_runs_asked_for(reading: StoreCache) -> None:
    assert answer(reading, "ett", where=(("team", "feed"),))[0]["accelerator_hours"] == 2.0
    assert answer(reading, "tts", where=(("model", "dlrm"),))[0]["tts_s"] == 100.0
    assert answer(reading, "ett", "model", where=(("team", "ads"),), limit=1)[0]["model"] == "dlrm"


def test_time_to_start(reading: StoreCache) -> None:
    (row,) = answer(reading, "tts")
    assert (row["jobs"], row["never_trained"]) == (4, 1)
    assert row["tts_s_by_jobs"] == pytest.approx(40.0)
    assert row["tts_s"] == pytest.approx((8 * 100 + 2 * 10) / 10)
    assert row["tts_p50_s"] == 10.0 and row["tts_p90_s"] == pytest.approx(82.0)


def test_a_run_that_shrank_counts_what_each_attempt_held(tmp_path: Path) -> None:
    """64 accelerators for an hour, then 8 for 99 hours."""
    store = Store(str(tmp_path / "store"))
    first = run_rows("r", accelerators=64, time_to_start_s=90.0)
    then = run_rows("r", attempt=1, accelerators=8, hours=99, start=START + timedelta(hours=1))
    tables = {
        **merge_rows(first, then),
        "runs": [
            {**first["runs"][0], "attempts": 2, "wall_s": 360_000.0, "effective_s": 300_000.0}
        ],
    }
    store.write(tables)
    with closing(StoreCache(store)) as reading:
        (ett,), (tts,) = answer(reading, "ett"), answer(reading, "tts")
        assert ett["accelerator_hours"] == tts["accelerator_hours"] == 64 + 8 * 99
        assert tts["starting_accelerator_hours"] == pytest.approx(64 * 90 / 3600)
        (run,) = reading.rows(pages.matching_runs(Filter(), {}, skip=0, limit=9))
        assert run["accelerator_hours"] == ett["accelerator_hours"]
        assert run["lost_hours"] == pytest.approx(ett["accelerator_hours"] / 6)


def test_time_to_recover(reading: StoreCache) -> None:
    (row,) = answer(reading, "ttr", "team")
    assert (row["team"], row["jobs"], row["interruptions"]) == ("ads", 1, 1)
    assert row["ttr_s"] == row["ttr_s_by_jobs"] == 300.0
    assert row["recovering_accelerator_hours"] == pytest.approx(8 * 300 / 3600)


def test_failures_and_what_they_cost(reading: StoreCache) -> None:
    hardware, network = answer(reading, "failures")
    assert (hardware["category"], hardware["failures"]) == ("gpu_hardware", 1)
    assert hardware["accelerator_hours"] == pytest.approx(4.0)
    assert (network["failures"], network["never_recovered"], network["jobs"]) == (2, 1, 1)
    assert network["accelerator_hours"] == pytest.approx(8 * (450 + 450 + 450) / 3600)
    assert network["ttr_s"] == network["ttr_s_by_jobs"] == 450.0
    (host,) = answer(reading, "failures", "host", "owner")
    assert (host["host"], host["failures"]) == ("n7", 3)


def test_the_number_of_failures_is_that_of_the_infrastructure(tmp_path: Path) -> None:
    """Those of others stand beside it; rows of runs that an older version wrote are counted."""
    store = Store(str(tmp_path / "store"))
    owners = ("infra", "infra", "user", "scheduler", "ambiguous")
    for run, known in (("new", {"failures_user": 1, "failures_scheduler": 1}), ("old", {})):
        tables = run_rows(run)
        own = {"failures": 2, "failures_ambiguous": 1, **known} if known else {"failures": 5}
        tables["runs"][0].update(own)
        tables["failures"] = [
            {
                "run_id": run,
                "attempt": 0,
                "at": START,
                "category": "x",
                "owner": owner,
                "retry": "yes",
                "accelerators": 2,
                "lost_s": 0.0,
            }
            for owner in owners
        ]
        store.write(tables)
    with closing(StoreCache(store)) as reading:
        (row,) = answer(reading, "failures")
        counts = {name: row[name] for name in row if name.startswith("failures")}
        assert counts == {
            "failures": 4,
            "failures_user": 2,
            "failures_scheduler": 2,
            "failures_ambiguous": 2,
            "failures_all": 10,
        }
        runs = reading.rows(pages.matching_runs(Filter(), {}, skip=0, limit=9))
        assert [(run["failures"], run["failures_beside"]) for run in runs] == [(2, 3), (2, 3)]


def test_saves_and_what_they_block(reading: StoreCache) -> None:
    (row,) = answer(reading, "checkpoints")
    assert (row["level"], row["jobs"], row["saves"], row["failed"]) == ("disk", 2, 3, 1)
    assert row["accelerator_hours"] == pytest.approx((8 * 6 + 9) / 3600)
    assert row["blocked_s"] == pytest.approx((8 * 4 + 8 * 2 + 9) / 17)
    assert row["blocked_s_by_jobs"] == pytest.approx((3 + 9) / 2)


def test_compiles(reading: StoreCache) -> None:
    (row,) = answer(reading, "compile", "team")
    assert (row["jobs"], row["compiles"], row["recompiles"], row["from_cache"]) == (2, 17, 8, 0)
    assert row["seconds"] == pytest.approx((8 * 90 + 10) / 9)
    assert row["seconds_by_jobs"] == pytest.approx(50.0)


def test_nodes_with_failures_come_first(reading: StoreCache) -> None:
    first, second = answer(reading, "nodes")
    assert (first["host"], first["failures"], first["jobs"]) == ("n7", 1, 1)
    assert first["failures_per_1000_accelerator_hours"] == pytest.approx(250.0)
    assert (second["host"], second["jobs"], second["accelerator_hours"]) == ("n8", 2, 5.0)
    assert second["effective_percent"] == second["effective_percent_by_jobs"] == 50.0


def test_top_losses(reading: StoreCache) -> None:
    rows = answer(reading, "top")
    assert [row["leaf"] for row in rows] == ["recover.downtime", "waste.data_stall"]
    assert rows[0]["percent"] == pytest.approx(100 * 2 / 11)
    assert rows[0]["percent_by_jobs"] == pytest.approx(25 / 4)
    (ads,) = answer(reading, "top", "team")
    assert ads["percent"] == pytest.approx(100 * 4 / 9)


def test_runs_without_a_label_are_a_row_of_their_own(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(merge_rows(run_rows("a", team="ads"), run_rows("b"), run_rows("c")))
    reading = StoreCache(store)
    for name in ("ett", "tts", "top"):
        rows = answer(reading, name, "team")
        assert sorted((str(row["team"]), row["jobs"]) for row in rows) == [("None", 2), ("ads", 1)]
    reading.close()


def test_the_same_from_an_empty_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write({"runs": [], "attempts": []})
    reading = StoreCache(store)
    for name in QUERIES:
        assert answer(reading, name, "team") == []
    reading.close()


@pytest.mark.parametrize("name", ["color", "category"])
def test_a_split_that_is_not_there_is_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, check=has_code("split-unknown")) as error:
        build_query("ett", Filter(by=(name,)))
    assert error.value.fields["split"] == name


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("dialect", ["postgres", "clickhouse", "databricks"])
def test_other_engines_can_be_told_the_same(name: str, dialect: str) -> None:
    """Only that Ibis has words for it: the engines themselves are not asked here."""
    import ibis

    from headway.fleet.schema import TABLES
    from headway.fleet.store.arrow import arrow_schema

    unbound = {
        key: ibis.table(ibis.schema(arrow_schema(table)), name=key) for key, table in TABLES.items()
    }
    own = QUERIES[name].dimensions[:1]
    asked = Filter(("team", "week", *own), START, START + WEEK, (("model", "dlrm"),), 10)
    assert "GROUP BY" in ibis.to_sql(build_query(name, asked)(unbound), dialect=dialect)


def test_the_command_line(
    reading: StoreCache, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    store = ["--store", reading.store.url]
    assert main(["fleet", "ett", *store, "--by", "team", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["team"] for row in rows] == ["ads", "feed"]
    words = ["--by", "week,team", "--csv", "--since", "2026-11-02", "--until", "2026-11-10"]
    assert main(["fleet", "ett", *store, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("week,team,jobs,accelerator_hours,ett_percent,")
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["2026-11-02T00:00:00", "ads", "2"],
        ["2026-11-09T00:00:00", "feed", "1"],
    ]
    assert main(["fleet", "top", *store, "--limit", "1"]) == 0
    assert main(["fleet", "ttr", *store, "--since", "2027-01-01", "--by", "team"]) == 0
    golden("questions.txt", capsys.readouterr().out)
