"""Which boosters a run gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.boosters.choose import MAX_RESTARTS, Choice, choose_boosters
from headway.boosters.profile import DisabledBooster, JobProfile
from headway.boosters.recipes import recipe_digest
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
    found = chosen(tmp_path)
    assert found.set == {
        "restarts": MAX_RESTARTS,
        "warm": True,
        "hang_watch": True,
        "compile_cache": str(tmp_path / "compile"),
        "learn": True,
        "async_save": True,
    }
    assert found.ours == found.set.keys() == set(found.on)
    assert found.off == {
        "autotune": "nothing was recorded yet",
        "publish": "there is no publish.toml",
    }
    (tmp_path / "j.autotune").touch()
    assert chosen(tmp_path).set["autotune"] == str(tmp_path / "j.autotune")


def test_what_the_user_has_set_comes_first(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text("learn = false\n")
    env = {"HEADWAY_RESTARTS": "2", "HEADWAY_WARM": "0"}
    found = chosen(tmp_path, env=env, async_save=False, compile_cache="")
    assert not found.set.keys() & {"restarts", "warm", "learn", "async_save", "compile_cache"}
    assert "restarts" in found.on and "restarts" not in found.ours
    assert found.off["warm"] == "set by you (HEADWAY_WARM)"
    assert found.off["learn"] == "set by you (headway.toml)"
    assert found.off["async_save"] == found.off["compile_cache"] == "set by you (flag)"


def test_what_went_wrong_stays_off_until_something_changes(tmp_path: Path) -> None:
    profile = JobProfile(job="j", off={"async_save": DisabledBooster(why="no room", versions=NOW)})
    found = chosen(tmp_path, profile)
    assert found.off["async_save"] == "no room" and found.set["async_save"] is False
    asked = chosen(tmp_path, profile, async_save=True)
    assert "async_save" in asked.on and "async_save" not in asked.ours
    older = JobProfile(
        job="j", off={"async_save": DisabledBooster(why="no room", versions="headway 0")}
    )
    assert "async_save" in chosen(tmp_path, older).ours


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
    assert chosen(tmp_path, profile).set.get("hang_after") == limit
    assert "hang_after" not in chosen(tmp_path, profile, hang_after=5.0).set
    assert "hang_after" not in chosen(tmp_path, profile, hang_watch=False).set
