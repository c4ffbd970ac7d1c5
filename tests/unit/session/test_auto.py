"""Choice, supervision and learning of boosters under `--auto`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.journal import run_files as notes
from headway.launch.attempt import AttemptResult
from headway.launch.failures import Fact
from headway.session.auto import (
    MAX_RESTARTS,
    AutoPolicy,
    BoosterMonitor,
    Choice,
    StaticBooster,
    choose_boosters,
    recipe_digest,
    runs_folder,
)
from headway.session.profile import Baseline, DisabledBooster, JobProfile, ProfileStore
from headway.settings import resolve

NOW = "headway 1, torch 2"


def chosen(
    tmp_path: Path,
    profile: JobProfile | None = None,
    env: dict[str, str] | None = None,
    recipe: Path | None = None,
    publish: str | None = None,
    **flags: Any,
) -> Choice:
    return choose_boosters(
        resolve(env=env or {}, folder=tmp_path, **flags),
        profile or JobProfile(job="j"),
        versions=NOW,
        archives=tmp_path / "compile",
        autotune=tmp_path / "j.autotune",
        recipe=recipe,
        publish=publish,
    )


def test_all_that_is_safe_is_on(tmp_path: Path) -> None:
    choice = chosen(tmp_path)
    assert choice.settings == {
        "restarts": MAX_RESTARTS,
        "warm": True,
        "hang_watch": True,
        "compile_cache": str(tmp_path / "compile"),
        "learn": True,
        "async_save": True,
    }
    assert choice.revocable == choice.settings.keys() == set(choice.on)
    assert choice.off == {
        "autotune": "nothing was recorded yet",
        "publish": "there is no publish.toml",
    }
    (tmp_path / "j.autotune").touch()
    assert chosen(tmp_path).settings["autotune"] == str(tmp_path / "j.autotune")


def test_what_the_user_has_set_comes_first(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text("learn = false\n")
    env = {"HEADWAY_RESTARTS": "2", "HEADWAY_WARM": "0"}
    choice = chosen(tmp_path, env=env, async_save=False, compile_cache="")
    assert not choice.settings.keys() & {"restarts", "warm", "learn", "async_save", "compile_cache"}
    assert "restarts" in choice.on and "restarts" not in choice.revocable
    assert choice.off["warm"] == "set by you (HEADWAY_WARM)"
    assert choice.off["learn"] == "set by you (headway.toml)"
    assert choice.off["async_save"] == choice.off["compile_cache"] == "set by you (flag)"


def test_what_went_wrong_stays_off_until_something_changes(tmp_path: Path) -> None:
    profile = JobProfile(job="j", off={"async_save": DisabledBooster(why="no room", versions=NOW)})
    choice = chosen(tmp_path, profile)
    assert choice.off["async_save"] == "no room" and choice.settings["async_save"] is False
    requested = chosen(tmp_path, profile, async_save=True)
    assert "async_save" in requested.on and "async_save" not in requested.revocable
    older = JobProfile(
        job="j", off={"async_save": DisabledBooster(why="no room", versions="headway 0")}
    )
    assert "async_save" in chosen(tmp_path, older).revocable


def test_a_recipe_that_failed_gets_a_new_try_when_it_is_another(tmp_path: Path) -> None:
    recipe = tmp_path / "publish.toml"
    recipe.write_text("a = 1")
    assert chosen(tmp_path, recipe=recipe).recipe == str(recipe)
    off = DisabledBooster(why="bad", versions=NOW, of=recipe_digest(recipe))
    profile = JobProfile(job="j", off={"publish": off})
    assert chosen(tmp_path, profile, recipe=recipe).off["publish"] == "bad"
    recipe.write_text("a = 2")
    assert chosen(tmp_path, profile, recipe=recipe).recipe == str(recipe)
    assert chosen(tmp_path, recipe=recipe, publish="").recipe is None
    assert chosen(tmp_path, recipe=recipe, publish="mine.toml").recipe == "mine.toml"


@pytest.mark.parametrize(("silence", "limit"), [(None, None), (1.0, 30.0), (20.0, 60.0), (90, 120)])
def test_the_hang_limit_is_learned(
    tmp_path: Path, silence: float | None, limit: float | None
) -> None:
    profile = JobProfile(job="j", silence_s=silence)
    assert chosen(tmp_path, profile).settings.get("hang_after") == limit
    assert "hang_after" not in chosen(tmp_path, profile, hang_after=5.0).settings
    assert "hang_after" not in chosen(tmp_path, profile, hang_watch=False).settings


COMMAND = ["python", "train.py"]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return []


def policy(lines: list[str]) -> AutoPolicy:
    return AutoPolicy(COMMAND, "runs/now", resolve(env={}, folder=Path.cwd()), None, lines.append)


def test_a_damaged_file_of_configs_is_made_again(lines: list[str]) -> None:
    job = policy(lines).job.id
    path = ProfileStore(Path("runs")).autotune(job)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": 1, "kernels": []}))
    assert policy(lines).choice.settings["autotune"] == str(path) and lines == []
    path.write_text("{")
    assert "autotune" in policy(lines).choice.off
    assert lines[0].endswith(" [auto-profile-recreated]")


def test_a_publish_that_failed_is_not_tried_again_with_the_same_recipe(lines: list[str]) -> None:
    Path("publish.toml").write_text('script = "train.py"')
    job = policy(lines).job.id
    shelf = ProfileStore(Path("runs"))
    shelf.update(job, lambda known: JobProfile(job=job, words=("train.py",), last_run="before"))
    assert policy(lines).choice.recipe is not None
    Path("runs/before").mkdir()
    notes.write_publish_note(Path("runs/before"), {"error": "no such model"})
    assert "no such model" in policy(lines).choice.off["publish"]
    Path("publish.toml").write_text('script = ["train.py"]')
    later = Path("runs/before/publish.json").stat().st_mtime + 1
    os.utime("publish.toml", (later, later))
    assert policy(lines).choice.recipe is not None


def test_a_recipe_of_another_script_is_told_and_not_used(lines: list[str]) -> None:
    Path("publish.toml").write_text('script = "train_headway.py"')
    driven = policy(lines)
    assert driven.choice.recipe is None and "publish" not in driven.choice.on
    assert "train_headway.py" in driven.choice.off["publish"]
    (line,) = lines
    assert line.endswith(f"{driven.choice.off['publish']} [auto-publish-off]")
    requested = AutoPolicy(
        COMMAND, "runs/now", resolve(env={}, folder=Path.cwd()), "publish.toml", print
    )
    assert requested.choice.recipe == "publish.toml"  # a flag is the user's own word


def test_a_run_that_left_nothing_teaches_nothing(lines: list[str]) -> None:
    policy(lines).end(Path("runs/now"), 0)
    assert lines[0].endswith(" [auto-learning-failed]")


def test_where_profiles_are_kept() -> None:
    assert runs_folder(None) == runs_folder("s3://bucket/night") == Path("headway")
    assert runs_folder("runs/night") == Path("runs")


CHOICE = Choice(
    on=("restarts", "learn", "async_save"),
    revocable=frozenset({"learn", "async_save"}),
    off={"warm": "set by you (flag)"},
)
BUG = Fact(source="exception", text="KeyError: 'x'", rank=0, node="a", at=1.0)


def monitor_and_lines() -> tuple[BoosterMonitor, list[str]]:
    lines: list[str] = []
    booster_monitor = BoosterMonitor(
        "train-1", CHOICE, {"kind": Baseline(save_s=0.5)}, lines.append
    )
    booster_monitor.boosters["learn"] = StaticBooster({"SOURCES": "L['x']"})
    booster_monitor.boosters["async_save"] = StaticBooster({"ASYNC": "1"}, acts=False)
    return booster_monitor, lines


def test_the_journal_says_what_an_attempt_has() -> None:
    monitor, _ = monitor_and_lines()
    events: list[dict[str, Any]] = []
    monitor.begin(events.append)
    monitor.drop(["learn"])
    monitor.begin(events.append)
    first, second = events
    assert first["on"] == ["restarts", "learn", "async_save"] and first["learned"] == ["SOURCES"]
    assert first["off"] == {"warm": "set by you (flag)"}
    assert first["known"] == {"kind": {"save_s": 0.5}}
    assert second["on"] == ["restarts", "async_save"] and "learn" in second["off"]


def test_a_suspect_is_left_out_and_off_once_the_job_works_without() -> None:
    monitor, lines = monitor_and_lines()
    stillborn = AttemptResult(status=1, facts=[BUG], elastic_restarts=[[]])
    assert monitor.suspects(stillborn) == ["learn"]
    assert monitor.dropped_env() == set()
    monitor.drop(["learn"])
    assert monitor.dropped_env() == {"SOURCES"} and lines[0].endswith(" [booster-dropped]")
    assert (
        monitor.suspects(stillborn) == [] and monitor.confirmed_culprits == {}
    )  # it was not to blame
    monitor.confirm_dropped(True)
    assert "before its first step" in monitor.confirmed_culprits["learn"]


def test_an_end_that_was_asked_for_or_good_has_no_suspect() -> None:
    monitor, _ = monitor_and_lines()
    assert monitor.suspects(AttemptResult(status=0, facts=[], elastic_restarts=[[]])) == []
    assert (
        monitor.suspects(AttemptResult(status=-15, facts=[BUG], elastic_restarts=[[]], signal=15))
        == []
    )


def test_a_fault_of_ours_costs_no_restart() -> None:
    monitor, lines = monitor_and_lines()
    assert monitor.suspects(AttemptResult(status=1, facts=None, elastic_restarts=[[]])) == []  # type: ignore[arg-type]
    assert lines[0].endswith(" [booster-diagnosis-failed]")
