"""Which recipe is found for a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.publish.recipe import read_recipe
from headway.session.auto import NO_RECIPE, find_recipe

COMMAND = ["torchrun", "--nproc-per-node", "2", "code/train.py", "--lr", "1"]


def recipe(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "publish.toml"
    path.write_text(text)
    return path


def test_in_the_working_folder_or_beside_the_script(tmp_path: Path) -> None:
    assert find_recipe(COMMAND, tmp_path) == (None, NO_RECIPE)
    beside = recipe(tmp_path / "code", 'script = "train.py"')
    assert find_recipe(COMMAND, tmp_path) == (beside, "")
    here = recipe(tmp_path, 'script = ["other.py", "code/train.py"]')
    assert find_recipe(COMMAND, tmp_path) == (here, "")
    recipe(tmp_path, 'script = "other.py"')
    assert find_recipe(COMMAND, tmp_path) == (beside, "")  # the first that is for it


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'script = "train.py"'),
        ("[targets.aoti]", "does not name a script"),
        ('script = "train_headway.py"', "is for train_headway.py, not for train.py"),
        ('script = ["a.py", "b.py"]', "is for a.py, b.py, not for train.py"),
    ],
)
def test_one_that_is_not_for_the_script(tmp_path: Path, text: str, reason: str) -> None:
    recipe(tmp_path, text)
    path, mismatch = find_recipe(COMMAND, tmp_path)
    assert path is None and reason in mismatch


@pytest.mark.parametrize("text", ["this is [no recipe", "script = 3"])
def test_a_mistake_is_left_to_who_reads_it(tmp_path: Path, text: str) -> None:
    path = recipe(tmp_path, text)
    assert find_recipe(COMMAND, tmp_path) == (path, "")


def test_a_module_and_no_script(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'script = "jobs.train"')
    assert find_recipe(["python", "-m", "jobs.train"], tmp_path) == (path, "")
    assert find_recipe(["python", "-m", "jobs.other"], tmp_path)[0] is None
    assert find_recipe([], tmp_path)[0] is None


def test_the_snapshot_is_the_same_whatever_the_script(tmp_path: Path) -> None:
    named = read_recipe(recipe(tmp_path, 'script = "train.py"\n[targets.safetensors]'))
    assert named.digest == read_recipe(recipe(tmp_path, "[targets.safetensors]")).digest
