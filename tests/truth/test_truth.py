"""The ledger against known truth: exact to the nanosecond, no tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import headway
from headway.ledger.build import build_ledger
from headway.ledger.model import Ledger
from headway.testing import FakeRun
from headway.units import NS
from tests.truth import (  # noqa: F401  (they register themselves)
    definitions,
    edge_cases,
    interruptions,
    loops,
    starts,
)
from tests.truth.scenarios import SCENARIOS, Scenario, Truth
from tests.truth.timelines import TIMELINES, journals

MUST_HAVE = 30


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_the_ledger_says_what_happened(scenario: Scenario, tmp_path: Path) -> None:
    folder = scenario.build().write(tmp_path / "run")
    if scenario.damage is not None:
        scenario.damage(folder)
    _compare(headway.load(folder).ledger, scenario.truth)


@pytest.mark.parametrize("timeline", TIMELINES, ids=[t.name for t in TIMELINES])
def test_ett_is_the_published_one(timeline: object) -> None:
    assert f"{journals(timeline).ledger().ett_percent:.1f}" == timeline.ett  # type: ignore


def test_an_earlier_answer_changes_nothing(tmp_path: Path) -> None:
    (timeline,) = [t for t in TIMELINES if t.stale_cache]
    whole = journals(timeline)
    FakeRun(whole.journals[:2]).write(tmp_path)  # the first life only
    assert len(headway.load(tmp_path).ledger.attempts) == 1
    whole.write(tmp_path)
    assert f"{headway.load(tmp_path).ett_percent:.1f}" == timeline.ett


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_the_truth_itself_balances(scenario: Scenario) -> None:
    truth = scenario.truth
    assert sum(_ns(truth.buckets).values()) == round(truth.wall * NS)
    for buckets in truth.ranks.values():
        assert sum(_ns(buckets).values()) == round(truth.wall * NS)


def test_there_are_enough_of_them() -> None:
    assert len(TIMELINES) == 13
    assert len({s.name for s in SCENARIOS}) == len(SCENARIOS) >= MUST_HAVE


def test_no_journals_at_all_is_an_empty_ledger() -> None:
    ledger = build_ledger([])
    assert (ledger.wall, ledger.buckets, ledger.attempts) == (0, {}, ())
    assert ledger.ett_percent == 0.0


def _compare(ledger: Ledger, truth: Truth) -> None:
    assert dict(ledger.buckets) == _ns(truth.buckets)
    assert ledger.wall == round(truth.wall * NS)
    effective = round(truth.buckets.get("train.effective", 0) * NS)
    assert ledger.ett_percent == 100.0 * effective / round(truth.wall * NS)
    assert ledger.time_to_start == (None if truth.tts is None else round(truth.tts * NS))
    assert ledger.time_to_recover == tuple(round(ttr * NS) for ttr in truth.ttr)
    assert ledger.steps == truth.steps
    assert [(a.outcome, a.first_step, a.last_step, a.resumed_from) for a in ledger.attempts] == [
        (a.outcome, a.first, a.last, a.resumed) for a in truth.attempts
    ]
    assert len(ledger.failures) == len(truth.failures)
    for failure, category in zip(ledger.failures, truth.failures, strict=True):
        assert category in (None, failure.category)
    assert dict(ledger.hidden) == _ns(truth.hidden)
    assert ledger.queue_capacity == (None if truth.queue is None else round(truth.queue * NS))
    assert ledger.paused == round(truth.paused * NS)
    assert ledger.running == truth.running
    assert truth.batches in (None, ledger.batches_per_step)
    assert not truth.note or any(truth.note in note for note in ledger.notes)
    ranks = {rank.rank: rank for rank in ledger.ranks}
    for number, buckets in truth.ranks.items():
        assert dict(ranks[number].buckets) == _ns(buckets)


def _ns(seconds: Mapping[str, float]) -> dict[str, int]:
    return {leaf: round(value * NS) for leaf, value in seconds.items()}
