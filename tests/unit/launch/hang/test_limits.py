"""How long a rank may go without a step."""

from __future__ import annotations

from headway.launch.hang.limits import FLOOR_S, SPAN_FLOOR_S, START_S, UNSEEN_S, StepTimingStats


def test_fast_steps_have_a_floor() -> None:
    learned = StepTimingStats()
    for _ in range(100):
        learned.add_gap(0.01)
    assert learned.limit(True, []) == FLOOR_S


def test_slow_steps_are_given_their_time() -> None:
    learned = StepTimingStats()
    for _ in range(100):
        learned.add_gap(30.0)
    assert learned.limit(True, []) == 150.0
    assert StepTimingStats(floor=3.0).limit(True, []) == START_S  # nothing is known yet


def test_the_longest_pause_that_went_well_may_come_again() -> None:
    learned = StepTimingStats()
    for _ in range(999):
        learned.add_gap(0.1)
    learned.add_gap(100.0)  # a save that no hook records
    assert learned.limit(True, []) == 200.0


def test_many_steps_between_two_looks_are_no_long_gap() -> None:
    learned = StepTimingStats()
    learned.add_gap(50.0, 1000)
    assert learned.limit(True, []) == FLOOR_S


def test_a_save_is_given_what_saves_take() -> None:
    learned = StepTimingStats()
    learned.add_gap(0.1)
    assert learned.limit(True, ["checkpoint_save"]) == UNSEEN_S
    learned.add_spans({"checkpoint_save": 100_000_000_000})
    assert learned.limit(True, ["checkpoint_save"]) == 300.0
    assert learned.limit(True, ["compile"]) == UNSEEN_S
    learned.add_spans({"checkpoint_save": 1_000_000_000, "compile": 1_000_000_000})
    assert learned.limit(True, ["checkpoint_save"]) == 300.0
    assert learned.limit(True, ["compile"]) == SPAN_FLOOR_S


def test_a_span_that_is_no_reason_changes_nothing() -> None:
    learned = StepTimingStats()
    learned.add_gap(0.1)
    assert learned.limit(True, ["forward"]) == FLOOR_S


def test_before_the_first_step_earlier_attempts_tell() -> None:
    learned = StepTimingStats()
    assert learned.limit(False, []) == START_S
    learned.longest_start = 100.0
    assert learned.limit(False, []) == 300.0
    learned.longest_start = 3.0
    assert learned.limit(False, []) == SPAN_FLOOR_S
