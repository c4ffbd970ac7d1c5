"""Learning from runs, and the undisturbed step time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.compile.recompiles import learning
from headway.compile.recompiles.learning import (
    LearnedSources,
    RecompileLearner,
    RunEvidence,
    StepTime,
    StepTimes,
    step_time,
)
from headway.compile.recompiles.sources import DYNAMIC, UNBACKED, VALUES
from headway.testing import FakeRun
from tests.support import Golden, codes

X = {DYNAMIC: "L['x']:0"}
TORCH = "2.13.0"


def evidence_of(**fields: Any) -> RunEvidence:
    defaults: dict[str, Any] = {
        "torch": TORCH, "env": X, "applied": False, "marked": False, "time": None,
        "failed_before_first_step": False,
    }  # fmt: skip
    return RunEvidence(**{**defaults, **fields})


def time(ms: float) -> StepTime:
    return StepTime(int(ms * 1e6), 100)


def test_a_run_teaches_the_next() -> None:
    learned = learning.update_learned(LearnedSources(), "c", evidence_of(time=time(10)))
    env, line = learning.settings_to_apply(learned, "c", {})
    assert env == X and DYNAMIC in line and codes(line) == [""]
    assert learning.settings_to_apply(LearnedSources(), "c", {}) == ({}, "")
    assert learning.settings_to_apply(learned, "another", {})[0] == X


@pytest.mark.parametrize("variable", [DYNAMIC, UNBACKED, VALUES])
def test_what_the_user_sets_is_the_users(variable: str) -> None:
    env, line = learning.settings_to_apply(
        LearnedSources(torch=TORCH, env=X), "c", {variable: "L['own']"}
    )
    assert env == {} and variable in line and codes(line) == ["learned-sources-not-applied"]


def test_slower_steps_are_taken_back() -> None:
    learned = learning.update_learned(LearnedSources(), "c", evidence_of(time=time(10)))
    well = learning.update_learned(
        learned, "c", evidence_of(applied=True, marked=True, time=time(10.5))
    )
    assert not well.step_times("c").off
    slow = learning.update_learned(
        learned, "c", evidence_of(applied=True, marked=True, time=time(10.6))
    )
    assert re.findall(r"[\d.]+", slow.step_times("c").off) == ["10.60", "10.00", "6"]
    env, line = learning.settings_to_apply(slow, "c", {})
    assert env == {} and codes(line) == ["learned-sources-off"]
    (line,) = learning.summary_lines(slow, learned, "c")
    assert codes(line) == ["learned-sources-off"]
    # Runs without them do not change that, another thing to mark does.
    assert learning.update_learned(slow, "c", evidence_of(time=time(9))).step_times("c").off
    more = learning.update_learned(slow, "c", evidence_of(env={DYNAMIC: "L['y']:0"}, time=time(9)))
    assert more.step_times("c") == StepTimes(without=time(9)) and more.env == {
        DYNAMIC: "L['x']:0,L['y']:0"
    }


def test_only_like_is_compared_with_like() -> None:
    learned = learning.update_learned(LearnedSources(), "c", evidence_of(time=time(10)))
    other = learning.update_learned(
        learned, "d", evidence_of(applied=True, marked=True, time=time(90))
    )
    assert not other.step_times("c").off and not other.step_times("d").off  # d never ran without
    newer = learning.update_learned(
        learned, "c", evidence_of(torch="2.14.0", applied=True, time=time(90))
    )
    assert newer.torch == "2.14.0" and newer.step_times("c") == StepTimes(marked=time(90))
    own = learning.update_learned(
        learned, "c", evidence_of(marked=True, time=time(90))
    )  # marked by the user
    assert own.step_times("c") == StepTimes(without=time(10))
    few = learning.update_learned(learned, "c", evidence_of(applied=True, marked=True, time=None))
    assert few.step_times("c") == StepTimes(without=time(10))


def test_a_job_that_dies_of_it_is_left_alone() -> None:
    learned = LearnedSources(torch=TORCH, env=X)
    dead = learning.update_learned(
        learned, "c", evidence_of(torch=None, env={}, applied=True, failed_before_first_step=True)
    )
    assert dead.step_times("c").off == learning.FAILED_BEFORE_FIRST_STEP and dead.env == X
    assert (
        learning.update_learned(
            learned, "c", evidence_of(torch=None, env={}, failed_before_first_step=True)
        )
        == learned
    )


def test_strings_of_another_torch_are_made_valid() -> None:
    learned = LearnedSources(torch=TORCH, env={DYNAMIC: "L['x']:0,L['k']"})
    text = {DYNAMIC: "L['x']:0,L['k'],L['x']"}
    older = learning.update_learned(
        learned, "c", evidence_of(torch="2.11.0", env=text, applied=True)
    )
    assert older.env == {DYNAMIC: "L['k'],L['x']"}


def test_commands_are_forgotten_in_order() -> None:
    learned = LearnedSources(torch=TORCH, env=X)
    for number in range(30):
        learned = learning.update_learned(learned, str(number), evidence_of(time=time(10)))
    assert list(learned.paces) == [str(number) for number in range(10, 30)]


def test_it_survives_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "job.json"
    learned = LearnedSources(torch=TORCH, env=X, paces={"c": StepTimes(time(10), time(20), "slow")})
    learning.write_learned(path, "job", learned)
    assert learning.read_learned(path) == learned
    assert [command.name for command in path.parent.iterdir()] == ["job.json"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1, "env": [], "paces": {}, "torch": 1}',
     '{"schema": 1, "env": {}, "torch": null, "paces": {"c": {"without": {"ns": 1}}}}',
     '{"schema": 1, "env": {}, "torch": null, "paces": [1]}'],
)  # fmt: skip
def test_a_damaged_file_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "job.json").write_text(content)
    assert learning.read_learned(tmp_path / "job.json") == LearnedSources()


def run_of(folder: Path, each: float, reason: str = "", **fields: Any) -> Path:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0, torch=TORCH)
    rank.span("compile", 1, 2, trigger="DYNAMO", where="a.py:1 f", **fields)
    if reason:
        rank.span("compile", 2, 3, trigger="DYNAMO", where="a.py:1 f", reason=reason)
    rank.train(1, 60, 3, each)
    launcher.exit(100, code=0)
    return job.write(folder)


def test_a_lesson_from_runs_on_disk(tmp_path: Path, golden: Golden) -> None:
    lines: list[str] = []

    def learner() -> RecompileLearner:
        return RecompileLearner(tmp_path, "job", ["python", "job.py"], lines.append)

    first = learner()
    assert first.begin({}) == {} and lines == []
    mismatch = "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 1"
    first.end(run_of(tmp_path / "one", 0.25, mismatch), 0)
    assert codes("\n".join(lines)) == [""]
    second = learner()
    # 1 asks for an unbacked size, which may break code: the learner marks it as dynamic only.
    assert second.begin({}) == {DYNAMIC: "L['x']:0"}
    marked = {"marked": {"dynamic_sources": "L['x']:0"}}
    second.end(run_of(tmp_path / "two", 0.5, **marked), 0)
    assert codes(lines[-1]) == ["learned-sources-off"]
    assert re.findall(r"[\d.]+", lines[-1]) == ["500.00", "250.00", "100"]
    third = learner()
    assert third.begin({}) == {} and codes(lines[-1]) == ["learned-sources-off"]
    golden("learning.txt", "\n".join([*lines, ""]))
    kept = json.loads((tmp_path / ".learned" / "job.json").read_text())
    assert kept["env"] == {DYNAMIC: "L['x']:0"} and kept["torch"] == TORCH


def test_a_run_that_cannot_be_read_costs_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    RecompileLearner(tmp_path, "job", ["a"], lines.append).end(tmp_path / "nowhere", 0)
    assert codes(lines[0]) == ["learning-failed"] and "FileNotFoundError" in lines[0]


def test_a_pace_without_both_times_is_not_judged() -> None:
    for step_times in (StepTimes(), StepTimes(without=time(1)), StepTimes(marked=time(9))):
        assert step_times.judge() == step_times
    off = replace(StepTimes(time(1), time(9)), off="before")
    assert off.judge() == off


@pytest.mark.parametrize(
    ("status", "compiled", "off"),
    [
        (1, True, True),
        (1, False, False),  # it has not come to a compile
        (-9, True, False),  # killed for memory
        (137, True, False),
        (143, True, False),
        (-2, True, False),
        (0, True, False),
    ],
)
def test_whose_fault_a_failed_start_is(
    status: int, compiled: bool, off: bool, tmp_path: Path
) -> None:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(0)
    if compiled:
        rank.open("compile", 2, trigger="DYNAMO", compile_id="0/0")
    rank.exit(5)
    job.write(tmp_path)
    learned = LearnedSources(torch=TORCH, env=X)
    after = learning.update_learned(learned, "c", learning.collect_evidence(tmp_path, X, status))
    assert bool(after.step_times("c").off) == off
    assert learning.collect_evidence(tmp_path, X, status).failed_before_first_step == off


def test_the_median_of_what_nothing_disturbs() -> None:
    job = FakeRun()
    rank = job.process(0)
    at = rank.train(1, 20, 0, 0.5)  # 10 s
    rank.span("checkpoint_save", at, at + 5)
    at = rank.train(21, 8, at + 5, 0.5)
    rank.span("compile", at + 0.2, at + 0.7)  # within a window of two steps
    rank.train(29, 2, at, 1.0)
    measured = step_time([journal.journal() for journal in job.journals])
    assert measured is not None and measured.ns == 500_000_000
    assert 20 <= measured.steps <= 28


def test_waits_for_data_are_no_part_of_a_step() -> None:
    job = FakeRun()
    rank = job.process(0)
    at = 0.0
    for _ in range(6):
        at = rank.train(rank.steps + 1, 4, at, 0.25, wait=0.5)
    measured = step_time([journal.journal() for journal in job.journals])
    assert measured is not None and measured.ns == 125_000_000


def test_the_slowest_rank_counts() -> None:
    job = FakeRun()
    for number, each in enumerate((0.1, 0.2)):
        job.process(0, rank=number, world=2).train(1, 100, 0, each)
    measured = step_time([journal.journal() for journal in job.journals])
    assert measured is not None and measured.ns == 200_000_000


def test_too_few_steps_say_nothing() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(0).train(1, 15, 0, 1.0)
    job.process(0, rank=1).train(1, 100, 0, 0.001)  # one window
    job.process(0, rank=2)
    assert step_time([journal.journal() for journal in job.journals]) is None
