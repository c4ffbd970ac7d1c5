"""One run under `--auto`: nothing that it finds, or does not find, is an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headway.boosters.drive import AutoPolicy, runs_folder
from headway.boosters.kept import ProfileStore
from headway.boosters.profile import JobProfile
from headway.journal import publish as notes
from headway.settings import resolve

COMMAND = ["python", "train.py"]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return []


def drive(said: list[str]) -> AutoPolicy:
    return AutoPolicy(COMMAND, "runs/now", resolve(env={}, folder=Path.cwd()), None, said.append)


def test_a_damaged_file_of_configs_is_made_again(said: list[str]) -> None:
    job = drive(said).job.id
    path = ProfileStore(Path("runs")).autotune(job)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": 1, "kernels": []}))
    assert drive(said).choice.set["autotune"] == str(path) and said == []
    path.write_text("{")
    assert "autotune" in drive(said).choice.off
    assert said[0].endswith(" [auto-profile-recreated]")


def test_a_publish_that_failed_is_not_tried_again_with_the_same_recipe(said: list[str]) -> None:
    Path("publish.toml").write_text('script = "train.py"')
    job = drive(said).job.id
    shelf = ProfileStore(Path("runs"))
    shelf.update(job, lambda known: JobProfile(job=job, words=("train.py",), last_run="before"))
    assert drive(said).choice.recipe is not None
    Path("runs/before").mkdir()
    notes.write_publish_note(Path("runs/before"), {"error": "no such model"})
    assert "no such model" in drive(said).choice.off["publish"]
    Path("publish.toml").write_text('script = ["train.py"]')
    later = Path("runs/before/publish.json").stat().st_mtime + 1
    os.utime("publish.toml", (later, later))
    assert drive(said).choice.recipe is not None


def test_a_recipe_of_another_script_is_told_and_not_used(said: list[str]) -> None:
    Path("publish.toml").write_text('script = "train_headway.py"')
    driven = drive(said)
    assert driven.choice.recipe is None and "publish" not in driven.choice.on
    assert "train_headway.py" in driven.choice.off["publish"]
    (line,) = said
    assert line.endswith(f"{driven.choice.off['publish']} [auto-publish-off]")
    asked = AutoPolicy(
        COMMAND, "runs/now", resolve(env={}, folder=Path.cwd()), "publish.toml", print
    )
    assert asked.choice.recipe == "publish.toml"  # a flag is the user's own word


def test_a_run_that_left_nothing_teaches_nothing(said: list[str]) -> None:
    drive(said).end(Path("runs/now"), 0)
    assert said[0].endswith(" [auto-learning-failed]")


def test_where_profiles_are_kept() -> None:
    assert runs_folder(None) == runs_folder("s3://bucket/night") == Path("headway")
    assert runs_folder("runs/night") == Path("runs")
