"""What is left out of the next attempt, and what is off for the job."""

from __future__ import annotations

from typing import Any

from headway.boosters.choose import Choice
from headway.boosters.pilot import BoosterMonitor, StaticBooster
from headway.boosters.profile import Baseline
from headway.launch.attempt import AttemptResult
from headway.launch.failures import Fact

CHOICE = Choice(
    on=("restarts", "learn", "async_save"),
    ours=frozenset({"learn", "async_save"}),
    off={"warm": "set by you (flag)"},
)
BUG = Fact(source="exception", text="KeyError: 'x'", rank=0, node="a", at=1.0)


def pilot() -> tuple[BoosterMonitor, list[str]]:
    said: list[str] = []
    made = BoosterMonitor("train-1", CHOICE, {"kind": Baseline(save_s=0.5)}, said.append)
    made.parts["learn"] = StaticBooster({"SOURCES": "L['x']"})
    made.parts["async_save"] = StaticBooster({"ASYNC": "1"}, acts=False)
    return made, said


def test_the_journal_says_what_an_attempt_has() -> None:
    made, _ = pilot()
    events: list[dict[str, Any]] = []
    made.begin(events.append)
    made.without(["learn"])
    made.begin(events.append)
    first, second = events
    assert first["on"] == ["restarts", "learn", "async_save"] and first["learned"] == ["SOURCES"]
    assert first["off"] == {"warm": "set by you (flag)"}
    assert first["known"] == {"kind": {"save_s": 0.5}}
    assert second["on"] == ["restarts", "async_save"] and "learn" in second["off"]


def test_a_suspect_is_left_out_and_off_once_the_job_works_without() -> None:
    made, said = pilot()
    stillborn = AttemptResult(status=1, facts=[BUG], lives=[[]])
    assert made.suspects(stillborn) == ["learn"]
    assert made.withheld() == set()
    made.without(["learn"])
    assert made.withheld() == {"SOURCES"} and said[0].endswith(" [booster-dropped]")
    assert made.suspects(stillborn) == [] and made.settled == {}  # it was not to blame
    made.went_on(True)
    assert "before its first step" in made.settled["learn"]


def test_an_end_that_was_asked_for_or_good_has_no_suspect() -> None:
    made, _ = pilot()
    assert made.suspects(AttemptResult(status=0, facts=[], lives=[[]])) == []
    assert made.suspects(AttemptResult(status=-15, facts=[BUG], lives=[[]], signal=15)) == []


def test_a_fault_of_ours_costs_no_restart() -> None:
    made, said = pilot()
    assert made.suspects(AttemptResult(status=1, facts=None, lives=[[]])) == []  # type: ignore[arg-type]
    assert said[0].endswith(" [booster-diagnosis-failed]")
