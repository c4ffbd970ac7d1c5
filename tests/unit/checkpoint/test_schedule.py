"""When a save is due, on clocks that are told what time it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from headway.checkpoint.interval import FailureRate
from headway.checkpoint.schedule import TOTALS, Level, SaveSchedule, is_restart
from headway.checkpoint.tuner import Tuner

pytestmark = pytest.mark.timeout(30)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def alone(mine: Any) -> Any:
    return mine


def saves(
    schedule: SaveSchedule, clock: Clock, steps: int, step_s: float, block_s: float
) -> list[tuple[int, Level]]:
    """The steps after which a loop saves, and where."""
    found: list[tuple[int, Level]] = []
    for step in range(1, steps + 1):
        clock.now += step_s
        level = schedule.due(step)
        if level:
            clock.now += block_s
            schedule.set_due(step, schedule._first(schedule.steps_until_due()), level)
            schedule.save_started(step, level, block_s)
            schedule.save_ended({"step": step, "level": level, "seconds": 0.0, "bytes": 1})
            found.append((step, level))
    return found


def test_every_so_many_seconds_as_steps() -> None:
    clock = Clock()
    schedule = SaveSchedule({"disk": 5.0}, alone, clock)
    found = saves(schedule, clock, 160, 0.1, 1.0)
    assert found == [(60, "disk"), (110, "disk"), (160, "disk")]


def test_a_save_to_disk_is_one_in_memory_as_well() -> None:
    clock = Clock()
    schedule = SaveSchedule({"memory": 2.0, "disk": 5.0}, alone, clock)
    found = saves(schedule, clock, 120, 0.1, 0.0)
    assert found == [
        (30, "memory"),
        (50, "memory"),
        (60, "disk"),
        (80, "memory"),
        (100, "memory"),
        (110, "disk"),
    ]


def test_rank_0_says_when() -> None:
    clock = Clock()
    schedule = SaveSchedule({"disk": 1000.0}, lambda mine: {"disk": 7}, clock)
    assert [step for step, _ in saves(schedule, clock, 40, 0.1, 0.0)] == [17, 24, 31, 38]


def test_a_tuner_moves_the_interval() -> None:
    clock = Clock()
    tuner = Tuner(first=10.0, prior=FailureRate(shape=10.0, hours=1.0))
    schedule = SaveSchedule({"disk": tuner}, alone, clock)
    found = [step for step, _ in saves(schedule, clock, 3000, 0.1, 0.02)]
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert gaps[0] != gaps[-1]
    advice = schedule.advice()
    assert advice is not None and advice.bound == "law" and advice.cost_s == pytest.approx(0.02)
    assert gaps[-1] == pytest.approx(advice.interval_s / 0.1, abs=1)


def test_a_fixed_interval_is_told_what_would_be_better() -> None:
    clock = Clock()
    schedule = SaveSchedule({"disk": 5.0}, alone, clock)
    saves(schedule, clock, 36_000, 0.1, 0.02)
    told = schedule.interval_report("disk")
    assert told["interval_s"] == 5.0
    assert told["recommended_s"] == pytest.approx((2 * 0.02 * 2 * 3600) ** 0.5, rel=0.02)
    assert told["recommended_percent"] < told["wasted_percent"]
    assert told["failures_low"] < told["failures_per_hour"] < told["failures_high"]


def test_failures_count_for_the_level_that_they_are_recovered_from() -> None:
    clock = Clock()
    memory, disk = (Tuner(first=1.0, prior=FailureRate(1.0, 1.0)) for _ in range(2))
    schedule = SaveSchedule({"memory": memory, "disk": disk}, alone, clock)
    schedule.resumed({TOTALS: {"failures": 3, "from_memory": 2}}, failed=True, level="memory")
    for level in schedule.levels:
        schedule.save_started(1, level, 0.1)
        schedule.save_ended({"step": 1, "level": level, "seconds": 0.0})
    rates = [tuner.advice().failures_per_hour for tuner in (memory, disk)]
    assert rates == pytest.approx([4.0, 2.0])


def test_slower_steps_count_while_a_save_is_under_way() -> None:
    clock = Clock()
    tuner = Tuner(first=1.0, prior=FailureRate(shape=10.0, hours=1.0))
    schedule = SaveSchedule({"disk": tuner}, alone, clock)
    for step in range(1, 30):
        clock.now += 0.1
        if schedule.due(step):
            break
    schedule.save_started(step, "disk", 0.0)
    for _ in range(4):
        clock.now += 0.15
        schedule.due(step)
    cost = schedule.save_ended({"step": step, "level": "disk", "seconds": 0.6, "bytes": 10})
    assert schedule.save_ended({"step": 999, "level": "disk", "seconds": 1.0}) is None
    assert cost is not None and cost.slower_s == pytest.approx(0.2)
    advice = tuner.advice()
    assert advice.cost_s == pytest.approx(0.2) and advice.durable_s == pytest.approx(0.6)


def test_uptime_and_failures_go_on_over_attempts() -> None:
    clock = Clock()
    first = SaveSchedule({"disk": 1.0}, alone, clock)
    clock.now = 100.0
    told = {TOTALS: first.totals()}
    second = SaveSchedule({"disk": 1.0}, alone, clock)
    second.resumed(told, failed=True, level="memory")
    clock.now = 150.0
    assert second.totals() == {"uptime_s": 150.0, "failures": 1, "from_memory": 1}
    third = SaveSchedule({"disk": 1.0}, alone, clock)
    third.resumed({TOTALS: second.totals()}, failed=False, level="memory")
    assert third.totals() == {"uptime_s": 150.0, "failures": 1, "from_memory": 1}
    third.resumed({}, failed=True, level="disk")
    assert third.totals() == {"uptime_s": 0.0, "failures": 1, "from_memory": 0}


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
    assert is_restart(env) is said
