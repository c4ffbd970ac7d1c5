"""Rules held against real stores: thresholds, burns, changes of slices and running jobs."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headway.fleet.alerts.evaluate import evaluate
from headway.fleet.alerts.measure import measure_rules
from headway.fleet.alerts.rules import Rule, Rules, read_rules
from headway.fleet.alerts.state import FIRING, RESOLVED, Sample, State
from headway.fleet.store.arrow import utc_datetime
from headway.fleet.store.parquet import Store
from headway.ledger.buckets import EFFECTIVE
from tests.support import Golden, codes
from tests.unit.fleet.scan_result import NOW as NOW_SEEN
from tests.unit.fleet.scan_result import SCAN_RESULT
from tests.unit.fleet.store_rows import merge_rows, run_rows

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("answers")]
NOW = datetime(2026, 11, 16, 12, 30)
EPOCH = (NOW - datetime(1970, 1, 1)).total_seconds()
STALL = "waste.data_stall"


def rule(text: str) -> Rule:
    return read_rules(f'[[rule]]\nname = "r"\n{text}', "r").rules[0]


def answer(store: Store, one: Rule, now: float = EPOCH) -> dict[str, Sample]:
    found, notes = measure_rules(store, [one], now)
    assert notes == [] and found["r"] is not None
    return {reading.slice: reading for reading in found["r"]}


def hour(back: float) -> datetime:
    return NOW.replace(minute=0) - timedelta(hours=back)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_a_threshold_is_held_against_each_slice(store: Store, golden: Golden) -> None:
    slow, fast = {EFFECTIVE: 2880.0, STALL: 720.0}, {EFFECTIVE: 3240.0, STALL: 360.0}
    store.write(
        merge_rows(
            run_rows("a", start=hour(5), hours=3, leaves=slow, team="ads", model="m"),
            run_rows("b", start=hour(5), hours=3, leaves=fast, team="ads", model="n"),
            run_rows("c", start=hour(60), hours=3, leaves=slow, team="ads", model="n"),
            run_rows("d", start=hour(5), hours=3, leaves=slow, team="other", model="m"),
        )
    )
    below = 'kind = "threshold"\nmetric = "ett"\nbelow = 85\nwhere = { team = "ads" }\n'
    found = answer(store, rule(below + 'by = "model"'))
    assert {name: one.is_bad for name, one in found.items()} == {
        "team=ads model=m": True,
        "team=ads model=n": False,
    }
    bad = found["team=ads model=m"]
    assert bad.value == pytest.approx(80)
    golden("readings.txt", "".join(f"{one.text}\n" for _, one in sorted(found.items())))
    assert answer(store, rule(below))["team=ads"].value == pytest.approx(85)
    assert answer(store, rule(below + "least_jobs = 3")) == {}
    assert answer(store, rule(below.replace("ads", "nobody"))) == {}
    jobs = rule('kind = "threshold"\nmetric = "jobs"\nabove = 2\nover = "2h"')
    assert answer(store, jobs) == {}
    counts = rule('kind = "threshold"\nmetric = "failures"\nabove = 2')
    assert answer(store, counts) == {}


def test_a_limit_that_is_not_kept_for_two_hours(store: Store, golden: Golden) -> None:
    """TTS p90 of team ads above 5 min for 2 h, as the issue has it."""
    burn = 'kind = "burn"\nmetric = "tts_p90"\nabove = "5min"\nfor = "2h"\nby = "team"\n'

    def starts(name: str, team: str, back: float, took: float) -> dict[str, list[dict[str, Any]]]:
        at = NOW - timedelta(hours=back)
        return run_rows(name, start=at, team=team, time_to_start_s=took)

    store.write(
        merge_rows(
            *(starts(f"a{back}", "ads", back, 400.0) for back in (0.2, 1.1, 2.1)),
            *(starts(f"b{back}", "now and then", back, 400.0) for back in (0.2, 2.1)),
            *(starts(f"c{back}", "late", back, 400.0) for back in (0.2, 1.1)),
            *(starts(f"d{back}", "good", back, 200.0) for back in (0.2, 1.1, 2.1)),
            starts("e", "better now", 0.2, 10.0),
            *(starts(f"e{back}", "better now", back, 400.0) for back in (1.1, 2.1, 3.1, 4.1)),
        )
    )
    found = answer(store, rule(burn))
    assert {name: one.is_bad for name, one in found.items()} == {
        "team=ads": True,
        "team=now and then": True,
        "team=late": False,
        "team=good": False,
        "team=better now": False,
    }
    golden("burn.txt", found["team=ads"].text + "\n")
    assert found["team=ads"].since == EPOCH - 2 * 3600
    odd = answer(store, rule(burn.replace("2h", "1.1h")))  # 3960.0000000000005 seconds
    assert odd["team=ads"].is_bad
    budget = answer(store, rule(burn + 'over = "1d"'))
    assert budget["team=better now"].is_bad and budget["team=better now"].value == pytest.approx(
        4 * 3600.0
    )


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """30 days of two models; one stalls more since 4 days, and one job of the other runs badly."""
    made = Store(str(tmp_path_factory.mktemp("changed") / "store"))
    jobs = [_job(number) for number in range(600)]
    jobs += [
        run_rows(name, running=True, **_running(hours=12, share=share))
        for name, share in (("fell", 0.3), ("fine", 0.93))
    ]
    made.write(merge_rows(*jobs), as_of=1.0)
    return made


def _running(hours: int, share: float) -> dict[str, Any]:
    leaves = {EFFECTIVE: 3600 * share, STALL: 3600 * (1 - share)}
    return {"start": hour(hours), "hours": hours, "leaves": leaves, "team": "t", "model": "good"}


def _job(number: int) -> dict[str, list[dict[str, Any]]]:
    draw = random.Random(number)
    model = "bad" if number % 2 else "good"
    back = 30 * 24 * (1 - number / 600) + 4
    whole = draw.uniform(2400, 3600)
    stall = whole * (draw.uniform(0.04, 0.06) + (0.06 if model == "bad" and back < 96 else 0))
    leaves = {EFFECTIVE: whole - stall, STALL: stall}
    start = NOW - timedelta(hours=back)
    return run_rows(f"r{number}", start=start, hours=3, leaves=leaves, team="t", model=model)


CHANGES = {
    "all": 'clear_for = "0s"',
    "lately": 'of = "slices"\nover = "2d"',
    "hosts": 'of = "hosts"',
    "large": 'of = "slices"\npoints = 8',
}


@pytest.fixture(scope="module")
def answers(changed: Store) -> dict[str, list[Sample]]:
    """Of all rules together: those that mean the same share one look."""
    rules = [replace(rule(f'kind = "change"\n{text}'), name=name) for name, text in CHANGES.items()]
    answers, notes = measure_rules(changed, rules, EPOCH)
    assert notes == []
    return {name: list(readings or ()) for name, readings in answers.items()}


def test_changes_and_running_jobs_are_told(answers: dict[str, list[Sample]]) -> None:
    assert {name: len(readings) for name, readings in answers.items()} == {
        "all": 2,
        "lately": 0,
        "hosts": 0,
        "large": 0,
    }
    found = {one.slice: one for one in answers["all"]}
    assert found.keys() == {"team=t model=bad", "team=t model=good run=fell"}
    change, fell = found["team=t model=bad"], found["team=t model=good run=fell"]
    assert change.value == pytest.approx(6, abs=0.5) and STALL in change.text
    assert change.change_at == pytest.approx(EPOCH - 96 * 3600, abs=86400)
    assert fell.value == pytest.approx(30)


def test_the_texts_of_what_was_looked_for(
    changed: Store, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("headway.fleet.regressions.scan.scan", lambda *_: SCAN_RESULT)
    every = rule('kind = "change"\nof = ["slices", "running", "hosts"]\nover = "26w"')
    found, _ = measure_rules(changed, [every], NOW_SEEN)
    texts = [f"{one.slice}: {one.text}\n" for one in found["r"] or ()]
    golden("changes.txt", "".join(texts))


def test_a_running_job_is_over_when_it_ends_and_a_change_stays_one(
    changed: Store, answers: dict[str, list[Sample]], tmp_path: Path
) -> None:
    rules = Rules((replace(rule(f'kind = "change"\n{CHANGES["all"]}'), name="all"),), {})
    first = evaluate(rules, answers, State(), EPOCH)
    assert [one.state for one in first.alerts] == [FIRING, FIRING]
    changed = Store(str(shutil.copytree(changed.url, tmp_path / "copy")))
    changed.write(run_rows("fell", **_running(hours=13, share=0.3)), as_of=2.0)
    later = EPOCH + 3600
    second = evaluate(
        rules, measure_rules(changed, rules.rules, later)[0], State(first.alerts), later
    )
    assert {one.slice: one.state for one in second.alerts} == {
        "team=t model=bad": FIRING,
        "team=t model=good run=fell": RESOLVED,
    }
    assert {one.id for one in second.alerts} == {one.id for one in first.alerts}


def test_a_store_that_cannot_be_read_is_no_answer(tmp_path: Path) -> None:
    found, notes = measure_rules(Store(str(tmp_path)), [rule('kind = "change"')], time.time())
    assert found == {"r": None}
    assert codes("\n".join(notes)) == ["rule-not-checked"]


def test_the_moments_of_this_file_are_those_of_the_store() -> None:
    assert utc_datetime(EPOCH) == NOW
