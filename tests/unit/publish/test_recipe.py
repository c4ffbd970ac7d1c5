"""A recipe is read as it was meant, and a typo is told in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.publish import recipe

GOOD = """
keep = 3
[model]
factory = "model:build"
arguments = { rows = 10 }
weights = "ema"
[golden]
inputs = "model:golden"
[tables]
int8 = ["tables.*"]
[tables.prune]
last_use = "used"
within = 100
[limits]
latency_growth = 2
[targets.safetensors]
[targets.aoti]
tolerance = 1e-3
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_recipe_is_read(tmp_path: Path) -> None:
    found = recipe.read(write(tmp_path, GOOD))
    assert found.model.factory == "model:build" and found.model.arguments == {"rows": 10}
    assert found.model.weights == ("ema",)
    assert found.tables.int8 == ("tables.*",)
    assert found.tables.prune == recipe.Prune(last_use="used", within=100)
    assert found.limits.latency_growth == 2 and found.limits.size_mb is None
    assert [(one.name, one.options) for one in found.targets] == [
        ("safetensors", {}),
        ("aoti", {"tolerance": 1e-3}),
    ]
    assert found.keep == 3 and found.folder == tmp_path
    same = recipe.read(write(tmp_path, "# another comment\n" + GOOD))
    other = recipe.read(write(tmp_path, GOOD.replace("rows = 10", "rows = 11")))
    assert same.digest == found.digest != other.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("factory =", "facory =", "recipe.toml [model] has no 'facory'; did you mean 'factory'?"),
        ("[limits]", "[limit]", "recipe.toml has no section 'limit'; did you mean 'limits'?"),
        ("[targets.aoti]", "[targets.aotin]", "there is no target 'aotin'; there are aoti, onnx"),
        ('"model:build"', "7", "recipe.toml [model] sets factory to 7, but it must be text"),
        ('["tables.*"]', "true", "[tables] sets int8 to True, but it must be a list of names"),
        ("latency_growth = 2", 'latency_growth = "2"', "sets latency_growth to '2', but it must"),
        ("latency_growth = 2", "latency_growth = -2", "but it must be 0 or more"),
        ("within = 100", "", "recipe.toml [tables.prune] needs 'within'"),
        ('inputs = "model:golden"', 'inputs = "m:g"\nanchor = "g"', "it can only have one"),
        (
            'inputs = "model:golden"',
            'inputs = "golden"',
            "recipe.toml: 'golden' is not like module:function",
        ),
        ("keep = 3", "keep = 0", "sets keep to 0, but it must be 1 or more"),
        ("[targets.aoti]", "[targets", "is not valid TOML"),
        (
            "[targets.safetensors]\n[targets.aoti]\ntolerance = 1e-3",
            "",
            "needs a section [targets]",
        ),
    ],
)
def test_a_typo_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        recipe.read(write(tmp_path, GOOD.replace(old, new)))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no recipe"):
        recipe.read(tmp_path / "none.toml")
