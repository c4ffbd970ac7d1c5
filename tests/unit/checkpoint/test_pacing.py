"""When a save is due, on clocks that are told what time it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from headway.checkpoint.pacing import TOTALS, Pacing, restarted
from headway.checkpoint.rate import FailureRate
from headway.checkpoint.tuner import Tuner

pytestmark = pytest.mark.timeout(30)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def alone(value: Any) -> list[Any]:
    return [value]


def saves(pacing: Pacing, clock: Clock, steps: int, step_s: float, block_s: float) -> list[int]:
    """The steps after which a loop saves."""
    found = []
    for step in range(1, steps + 1):
        clock.now += step_s
        if pacing.due(step):
            clock.now += block_s
            pacing.saved(step, block_s)
            pacing.ended([{"step": step, "seconds": 0.0, "bytes": 1}])
            found.append(step)
    return found


def test_every_so_many_seconds_as_steps() -> None:
    clock = Clock()
    pacing = Pacing(5.0, alone, clock)
    assert saves(pacing, clock, 160, 0.1, 1.0) == [60, 110, 160]


def test_rank_0_says_when() -> None:
    clock = Clock()
    pacing = Pacing(1000.0, lambda mine: [7, mine], clock)
    assert saves(pacing, clock, 40, 0.1, 0.0) == [17, 24, 31, 38]


def test_a_tuner_moves_the_interval() -> None:
    clock = Clock()
    tuner = Tuner(first=10.0, prior=FailureRate(shape=10.0, hours=1.0))
    pacing = Pacing(tuner, alone, clock)
    found = saves(pacing, clock, 3000, 0.1, 0.02)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert gaps[0] != gaps[-1]
    advice = pacing.advice()
    assert advice is not None and advice.bound == "law" and advice.cost_s == pytest.approx(0.02)
    assert gaps[-1] == pytest.approx(advice.interval_s / 0.1, abs=1)


def test_slower_steps_count_while_a_save_is_under_way() -> None:
    clock = Clock()
    tuner = Tuner(first=1.0, prior=FailureRate(shape=10.0, hours=1.0))
    pacing = Pacing(tuner, alone, clock)
    for step in range(1, 30):
        clock.now += 0.1
        if pacing.due(step):
            break
    pacing.saved(step, 0.0)
    for _ in range(4):
        clock.now += 0.15
        pacing.due(step)
    pacing.ended([{"step": step, "seconds": 0.6, "bytes": 10}, {"step": 999, "seconds": 1.0}])
    advice = tuner.advice()
    assert advice.cost_s == pytest.approx(0.2) and advice.durable_s == pytest.approx(0.6)


def test_uptime_and_failures_go_on_over_attempts() -> None:
    clock = Clock()
    first = Pacing(1.0, alone, clock)
    clock.now = 100.0
    told = {TOTALS: first.told()}
    second = Pacing(1.0, alone, clock)
    second.resumed(told, failed=True)
    clock.now = 150.0
    assert second.totals() == (150.0, 1)
    third = Pacing(1.0, alone, clock)
    third.resumed({TOTALS: second.told()}, failed=False)
    assert third.totals() == (150.0, 1)
    third.resumed({}, failed=True)
    assert third.totals() == (0.0, 1)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, False),
        ({"HEADWAY_LAUNCH": "658558550812"}, False),
        ({"HEADWAY_LAUNCH": "65b8558d508e.2"}, True),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "3"}, True),
    ],
)
def test_an_attempt_after_a_failure(env: dict[str, str], said: bool) -> None:
    assert restarted(env) is said
