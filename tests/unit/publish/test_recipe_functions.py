"""What a recipe names, looked for without running it."""

from __future__ import annotations

import inspect
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.publish import recipe
from headway.publish.targets import base
from tests.support import has_code, lazy

target = lazy("headway.publish.targets.base:load_target")

MODULES = {
    "plain.py": "raise SystemExit('never run')\ndef build(): ...\n",
    "bound.py": "build = lambda: None\n",
    "taken.py": "from plain import build\n",
    "all_of_it.py": "from plain import *\n",
    "lazy.py": "def __getattr__(name): ...\n",
    "nested.py": "if True:\n    class build: ...\n",
}


def read(folder: Path, factory: str) -> recipe.Recipe:
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    text = f'[model]\nfactory = "{factory}"\n[targets.safetensors]\n'
    (folder / "recipe.toml").write_text(text)
    return recipe.read_recipe(folder / "recipe.toml")


@pytest.mark.parametrize(
    "factory", [*(f"{Path(name).stem}:build" for name in MODULES), "torch.nn:Linear", "json:loads"]
)
def test_what_is_there(factory: str, tmp_path: Path) -> None:
    if factory.startswith("torch") and find_spec("torch") is None:
        pytest.skip("needs torch")
    before = sys.path[:]
    recipe.check_functions(read(tmp_path, factory))
    assert sys.path == before


@pytest.mark.parametrize(
    ("factory", "code", "fields"),
    [
        ("plane:build", "module-not-found", {"module": "plane"}),
        ("plane.deep:build", "module-not-found", {"module": "plane"}),
        ("plain:make", "function-not-found", {"function": "make"}),
        ("broken:build", "module-not-importable", {}),
    ],
)
def test_what_is_not(factory: str, code: str, fields: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def build(:\n")
    with pytest.raises(UsageError, check=has_code(code)) as error:
        recipe.check_functions(read(tmp_path, factory))
    assert error.value.fields == fields and "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(set(base.BUILT_IN_TARGETS) - {"onnx"}))
def test_a_target_of_ours_knows_its_tolerance_and_nothing_else(name: str) -> None:
    assert list(inspect.signature(type(target(name, {}))).parameters) == ["tolerance"]
