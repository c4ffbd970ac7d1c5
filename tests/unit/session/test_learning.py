"""What a run that is over teaches."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.session.job import identify
from headway.session.learning import (
    RunFindings,
    _async_save_costs_more,
    baseline,
    longest_step_gap,
    other_baselines,
    updated_profile,
)
from headway.session.profile import Baseline, DisabledBooster, JobProfile
from headway.testing import FakeRun

NOW = "headway 1, torch 2"
CONTRACT: dict[str, Any] = {
    "ranks": 1,
    "wall_s": 100.0,
    "buckets": {"start.pt2_compile": 10.0},
    "checkpoints": {"saves": 4, "blocked_s": 2.0},
    "compile": {
        "cold": 1,
        "cached": 0,
        "archives": [],
        "parts": {"import": 2.0, "inductor": 5.0, "autotune": 3.0},
        "recompiles": [{"rank": 0, "seconds": 1.0}, {"rank": 0, "seconds": 0.5}],
    },
}


def findings(**fields: Any) -> RunFindings:
    return RunFindings(**{"run": "r", "kind": "k", "baseline": Baseline(), **fields})


def test_figures_are_those_without_the_booster() -> None:
    assert baseline(CONTRACT, 5 * 10**9) == Baseline(
        compile_s=8.0, recompile_s=1.5, autotune_s=3.0, save_s=0.5, recover_s=5.0
    )
    acted = [{"name": name, "state": "acted"} for name in ("learn", "autotune")]
    archive = {"level": "exact", "attempt": 0, "compile_s": 1.0}
    compiled = {**CONTRACT["compile"], "archives": [archive]}
    saved = {**CONTRACT["checkpoints"], "behind": {"saves": 4}}
    boosted = {
        **CONTRACT, "auto": {"boosters": acted}, "compile": compiled, "checkpoints": saved,
    }  # fmt: skip
    assert baseline(boosted) == Baseline()
    missed = {**CONTRACT["compile"], "archives": [{**archive, "level": "miss"}]}
    assert baseline({**CONTRACT, "compile": missed}).compile_s == 1.0
    again = {**CONTRACT, "buckets": {"recover.pt2_compile": 1.0}}
    assert baseline(again).compile_s is None  # its parts are those of all attempts


@pytest.mark.parametrize(
    ("saved", "dear"), [(None, False), (5.0, False), (-1.5, False), (-3, True)]
)
def test_saves_that_cost_more_than_plain_ones_are_given_up(saved: float | None, dear: bool) -> None:
    booster = {"name": "async_save", "saved_s": saved, "here_s": 4.0, "without_s": 1.0}
    why = _async_save_costs_more({**CONTRACT, "auto": {"boosters": [booster]}})
    assert bool(why) is dear and _async_save_costs_more(CONTRACT) == ""


def test_what_is_not_measured_again_is_kept() -> None:
    first = updated_profile(
        JobProfile(job="j"), findings(baseline=Baseline(compile_s=8.0, save_s=0.5)), NOW, ("w",)
    )
    second = updated_profile(first, findings(baseline=Baseline(save_s=0.25), run="s"), NOW)
    assert second.measured["k"] == Baseline(compile_s=8.0, save_s=0.25)
    assert (second.runs, second.last_run, second.words) == (2, "s", ("w",))


def test_a_booster_that_went_wrong_is_off_with_the_first_reason() -> None:
    first = updated_profile(JobProfile(job="j"), findings(failures={"warm": "a"}), NOW)
    second = updated_profile(first, findings(failures={"warm": "b"}), NOW)
    assert second.off == {"warm": DisabledBooster(why="a", versions=NOW)}
    assert (
        updated_profile(second, findings(), "headway 2, torch 2").off == {}
    )  # it was tried again, and works


def test_archives_are_given_up_after_two_refusals_in_a_row() -> None:
    profile = JobProfile(job="j")
    for refused in (True, False, True):
        profile = updated_profile(profile, findings(refused=refused), NOW)
        assert profile.off == {}
    assert "compile_cache" in updated_profile(profile, findings(refused=True), NOW).off


def test_a_limit_that_a_hang_has_hit_grows() -> None:
    profile = updated_profile(JobProfile(job="j"), findings(silence_s=4.0), NOW)
    assert profile.silence_s == 4.0
    assert updated_profile(profile, findings(silence_s=1.0), NOW).silence_s == 4.0
    assert updated_profile(profile, findings(hang_limit_s=30.0), NOW).silence_s == 30.0


def test_the_longest_silence_goes_to_the_end_of_the_process() -> None:
    run = FakeRun()
    rank = run.process(begin=0.0, rank=0, world=1)
    end = rank.train(1, 30, 5.0, 0.5)
    assert longest_step_gap([rank.journal()]) is not None
    rank.exit(end + 7.0)
    assert longest_step_gap([rank.journal()]) == 7.0
    few = FakeRun().process(begin=0.0, rank=0, world=1)
    few.train(1, 3, 5.0, 0.5)
    assert longest_step_gap([few.journal()]) is None


def test_runs_beside_it_tell_what_it_costs_without(tmp_path: Path) -> None:
    job = identify(["python", "train.py"]).id

    def run(name: str, command: list[str], host: str = "", **more: Any) -> None:
        folder = tmp_path / name
        folder.mkdir()
        identity = {"command": command, "host": host or os.uname().nodename}
        identity |= {"versions": {"torch": "2"}}  # type: ignore[dict-item]
        (folder / "run.json").write_text(json.dumps(identity))
        (folder / "ledger.json").write_text(json.dumps({**CONTRACT, **more}))

    run("plain", ["torchrun", "train.py", "--seed", "3"])
    run("other", ["python", "eval.py"])
    run("elsewhere", ["python", "train.py"], host="another")
    run("boosted", ["python", "train.py"], auto={"boosters": []})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "ledger.json").write_text("{")
    ((kind, measured),) = other_baselines(tmp_path, job, [])
    assert kind == "torch 2, CPU, 1 rank(s)" and measured.save_s == 0.5
