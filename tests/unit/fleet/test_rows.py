"""A ledger as rows: every second is there once, in the hour and the attempt where it fell."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.fleet.rows import as_of, run_id, to_rows
from headway.fleet.store.parquet import Store
from headway.ledger.model import Ledger
from headway.testing import EPOCH, FakeRun, Host
from headway.units import NS
from tests.unit.fleet.store_rows import content


def interrupted() -> Ledger:
    """Two ranks on two hosts; rank 1 dies after 2 hours, and is replaced on a third host."""
    job = FakeRun()
    hosts = [Host("n0", "b0"), Host("n1", "b1"), Host("n2", "b2")]
    launcher = job.launcher(begin=0, host=hosts[0])
    first = [job.process(1, rank=r, world=2, host=hosts[r], pid=10 + r) for r in range(2)]
    for rank in first:
        rank.span("train_module_creation", 1, 101)
        rank.train(first=1, count=700, start=101, each=10.0)
        rank.span("checkpoint_save", 7101, 7111, path="ck", step=700, what="save")
        rank.train(first=701, count=9, start=7111, each=10.0)
    launcher.event("death", 7300, pid=11)
    second = [
        job.process(7400, rank=r, world=2, host=hosts[2 * r], pid=20 + r, restart=1)
        for r in range(2)
    ]
    for rank in second:
        rank.span("checkpoint_load", 7410, 7420, path="ck", step=700, what="load")
        rank.train(first=1, count=300, start=7420, each=10.0)
        rank.exit(10425)
    launcher.exit(10430, code=0)
    return job.ledger()


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return interrupted()


@pytest.fixture(scope="module")
def tables(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    return to_rows(ledger, job="train", labels={"team": "ads", "colour": "red"})


def test_the_hours_are_the_account_of_the_run(
    ledger: Ledger, tables: dict[str, list[dict[str, Any]]]
) -> None:
    total: dict[str, float] = defaultdict(float)
    for row in tables["hours"]:
        total[row["leaf"]] += row["seconds"]
        assert 0 < row["seconds"] <= 3600 and row["accelerator_s"] == 2 * row["seconds"]
    assert total == pytest.approx({leaf: ns / NS for leaf, ns in ledger.buckets.items() if ns})
    hours = {row["hour"] for row in tables["hours"]}
    assert {hour.minute for hour in hours} == {0} and len(hours) == 4


def test_each_rank_has_every_second_of_its_attempts(
    ledger: Ledger, tables: dict[str, list[dict[str, Any]]]
) -> None:
    total: dict[tuple[int, int], float] = defaultdict(float)
    for row in tables["buckets"]:
        total[row["attempt"], row["rank"]] += row["seconds"]
    walls = [row["wall_s"] for row in tables["attempts"]]
    assert sum(walls) == ledger.wall / NS
    assert total == pytest.approx({(a, r): walls[a] for a in range(2) for r in range(2)})


def test_attempts_tell_what_they_lost_and_what_recovery_took(
    ledger: Ledger, tables: dict[str, list[dict[str, Any]]]
) -> None:
    first, second = tables["attempts"]
    assert (first["outcome"], second["outcome"]) == ("failed", "completed")
    assert first["lost_s"] == 90.0 and second["resumed_from"] == 700
    assert first["time_to_recover_s"] is None
    assert second["time_to_recover_s"] == ledger.time_to_recover[0] / NS
    failure = tables["failures"][0]
    assert (failure["lost_s"], failure["attempt"]) == (90.0, 0)
    assert failure["time_to_recover_s"] == second["time_to_recover_s"]


def test_nodes_are_where_the_ranks_were(tables: dict[str, list[dict[str, Any]]]) -> None:
    assert [(row["attempt"], row["host"]) for row in tables["nodes"]] == [
        (0, "n0"),
        (0, "n1"),
        (1, "n0"),
        (1, "n2"),
    ]
    there = tables["nodes"][0]
    assert there["accelerators"] == 1 and there["accelerator_s"] == pytest.approx(there["wall_s"])


def test_saves_are_one_row_each(tables: dict[str, list[dict[str, Any]]]) -> None:
    (save,) = tables["checkpoints"]
    assert (save["step"], save["level"], save["blocked_s"]) == (700, "disk", 10.0)


def test_the_run_has_its_labels(ledger: Ledger, tables: dict[str, list[dict[str, Any]]]) -> None:
    (run,) = tables["runs"]
    assert (run["team"], run["model"], run["job"]) == ("ads", None, "train")
    assert run["labels"] == '{"colour": "red", "team": "ads"}'
    assert run["effective_s"] == ledger.buckets["train.effective"] / NS
    assert (run["attempts"], run["failures"], run["accelerators"]) == (2, 0, 2)
    assert {one.owner for one in ledger.failures} == {"ambiguous"}
    assert (run["failures_user"], run["failures_ambiguous"]) == (0, 1)


def test_a_run_is_known_by_what_it_was_made_with(ledger: Ledger) -> None:
    facts = {"created": 1.0, "host": "n0", "labels": {"team": "x"}}
    named = replace(ledger, metadata=facts)
    assert run_id(named) == run_id(replace(named, wall=ledger.wall * 2, attempts=()))
    assert run_id(named) != run_id(replace(named, metadata={**facts, "created": 2.0}))
    assert to_rows(named, labels={})["runs"][0]["team"] == "x"
    assert as_of(ledger) == EPOCH + 10430


def test_a_run_without_an_attempt_has_no_rows(ledger: Ledger) -> None:
    assert to_rows(replace(ledger, attempts=())) == {}


def test_the_store_takes_them(ledger: Ledger, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.write(to_rows(ledger), as_of=as_of(ledger))
    assert len(content(store, "buckets", "rank")) == len(to_rows(ledger)["buckets"])


@pytest.mark.parametrize("odd", [5, [1], {"a": "\ud800"}, True, 10**400])
def test_what_others_wrote_into_run_json_becomes_text(
    ledger: Ledger, tmp_path: Path, odd: object
) -> None:
    for facts in (
        {"versions": odd, "user": odd, "labels": odd},
        {"versions": {"torch": odd}, "labels": {"team": odd}},
    ):
        found = to_rows(replace(ledger, metadata=facts), job="train")
        assert all(type(found["runs"][0][name]) in (str, type(None)) for name in ("user", "torch"))
        Store(str(tmp_path / "store")).write(found)
