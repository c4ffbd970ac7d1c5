"""Advice for a store: ledgers rebuilt from rows, and advice summed over runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from headway.advise.gather import advise
from headway.advise.model import Evidence
from headway.cli import main
from headway.fleet import stored_ledgers
from headway.fleet.advice import collect
from headway.fleet.rows import to_rows
from headway.fleet.schema import TABLES
from headway.fleet.store.parquet import Store
from headway.ledger.buckets import EFFECTIVE
from headway.ledger.model import Ledger
from headway.units import NS
from tests.support import Golden, examples
from tests.truth.interruptions import preempted_queued_and_allocated_again
from tests.unit.advise.random_ledgers import ledgers
from tests.unit.report.ledgers import Line, killed, ledger_of

QUICK = settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def again(ledger: Ledger) -> Ledger:
    """A ledger written to rows with every column, and rebuilt."""
    tables = {
        name: [dict.fromkeys(TABLES[name].names) | row for row in found]
        for name, found in to_rows(ledger, job="train").items()
    }
    return stored_ledgers.ledger_from_rows(tables["runs"][0], tables)


@QUICK
@given(ledgers())
def test_the_sums_are_those_of_the_ledger(ledger: Ledger) -> None:
    found = again(ledger)
    for leaf in ledger.buckets.keys() | found.buckets.keys():
        assert abs(ledger.buckets.get(leaf, 0) - found.buckets.get(leaf, 0)) < 1000
    assert [one.outcome for one in found.attempts] == [one.outcome for one in ledger.attempts]
    assert len(found.failures) == len(ledger.failures)
    assert [len(one.ranks) for one in found.attempts] == [len(one.ranks) for one in ledger.attempts]


def test_times_are_those_of_the_ledger_where_time_was_left_out() -> None:
    ledger = preempted_queued_and_allocated_again().ledger()
    assert ledger.outside
    found = again(ledger)
    assert found.buckets == ledger.buckets
    assert [one.at for one in found.failures] == [one.at for one in ledger.failures]
    assert [one.start for one in found.checkpoints] == [one.start for one in ledger.checkpoints]
    stored = to_rows(ledger)
    (run,), (_, later) = stored["runs"], stored["attempts"]
    assert (later["started_at"] - run["started_at"]).total_seconds() == 90  # by the wall clock
    assert (run["ended_at"] - run["started_at"]).total_seconds() == 105


def test_what_others_write_need_not_be_whole() -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        name: [{**dict.fromkeys(TABLES[name].names), **row} for row in found]
        for name, found in to_rows(killed()).items()
    }
    tables["attempts"][1]["attempt"] = 7
    tables["hours"] = [row | {"attempt": 7 * row["attempt"]} for row in tables["hours"]]
    tables["failures"] = [row | {"attempt": 3} for row in tables["failures"]]
    tables["runs"][0]["command"] = "python -c 'unfinished"
    found = stored_ledgers.ledger_from_rows(tables["runs"][0], tables)
    assert [one.index for one in found.attempts] == [0, 1]
    assert found.wall == killed().wall
    assert not found.failures
    assert found.command == ("python -c 'unfinished",)
    assert advise(Evidence(ledger=found)).advice


def test_rules_that_need_sums_alone_say_the_same() -> None:
    here, there = killed(), again(killed())
    worths = [
        {one.rule: one.marginal // NS for one in advise(Evidence(ledger=ledger)).advice}
        for ledger in (here, there)
    ]
    for rule in ("async_checkpoint", "publish_off", "restart_warmth", "data_workers"):
        assert worths[0][rule] == worths[1][rule]


def stalled(seconds: float, name: str, ranks: int = 1) -> Ledger:
    ledger = ledger_of(
        Line().add(EFFECTIVE, 100).add("waste.data_stall", seconds), steps=9, run=name
    )
    attempt = replace(ledger.attempts[0], ranks=tuple(range(ranks)), world=ranks)
    return replace(ledger, attempts=(attempt,), metadata={"created": seconds})


def test_runs_are_added_up_by_accelerator_hours(golden: Golden) -> None:
    plans = [
        ("big", advise(Evidence(ledger=stalled(10, "a", ranks=8)))),
        ("small", advise(Evidence(ledger=stalled(50, "b")))),
        ("small", advise(Evidence(ledger=stalled(20, "c")))),
    ]
    found = collect("s", plans)
    assert [(row.job, row.runs, row.accelerator_ns // NS) for row in found.rows] == [
        ("big", 1, 80),
        ("small", 2, 70),
    ]
    told = found.to_dict()
    assert told["ett_percent"] == pytest.approx(100 * 1000 / 1150)
    assert told["with_all"]["ett_percent"] == pytest.approx(100.0)
    gained = sum(row["points"] for row in told["advice"])
    assert gained == pytest.approx(100 - told["ett_percent"])
    assert told["advice"][1]["most_in_run"] == "b"
    golden("advice.txt", "\n".join(found.lines()) + "\n")
    golden("advice-empty.txt", "\n".join(collect("s", plans[:0]).lines()) + "\n")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet") / "store"
    for number, seconds in enumerate((10.0, 50.0)):
        found = to_rows(stalled(seconds, f"run-{number}", ranks=2), job="train")
        Store(str(path)).write(found)
    return path


def call(*words: str) -> int:
    return main(["advise", *words])


def test_the_verb_on_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(store), "--json", "--since", "2020-01-01") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["runs"]) == (1, 2)
    (row,) = told["advice"]
    assert (row["rule"], row["job"], row["confidence"]) == ("data_workers", "train", "medium")
    # The run that waited 50 s comes down to what the other one waits.
    assert row["accelerator_hours"] == pytest.approx(2 * (40 + 10) / 3600)


def test_a_store_is_no_run(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(store), "--with", "other") == 2
    assert "[flag-needs-run]" in capsys.readouterr().err
    assert call(str(store), "--since", "yesterday") == 2
    assert "[time-invalid]" in capsys.readouterr().err
