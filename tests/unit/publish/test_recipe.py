"""A recipe is read as it was meant, and a typo is told in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.publish import recipe
from tests.support import has_code

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
    parsed = recipe.read_recipe(write(tmp_path, GOOD))
    assert parsed.model.factory == "model:build" and parsed.model.arguments == {"rows": 10}
    assert parsed.model.weights == ("ema",)
    assert parsed.tables.int8 == ("tables.*",)
    assert parsed.tables.prune == recipe.Prune(last_use="used", within=100)
    assert parsed.limits.latency_growth == 2 and parsed.limits.size_mb is None
    assert [(target.name, target.options) for target in parsed.targets] == [
        ("safetensors", {}),
        ("aoti", {"tolerance": 1e-3}),
    ]
    assert parsed.keep == 3 and parsed.folder == tmp_path
    same = recipe.read_recipe(write(tmp_path, "# another comment\n" + GOOD))
    other = recipe.read_recipe(write(tmp_path, GOOD.replace("rows = 10", "rows = 11")))
    assert same.digest == parsed.digest != other.digest


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("factory =", "facory =", "recipe-key-unknown"),
        ("[limits]", "[limit]", "recipe-key-unknown"),
        ("[targets.aoti]", "[targets.aotin]", "target-unknown"),
        ('"model:build"', "7", "recipe-value-invalid"),
        ('["tables.*"]', "true", "recipe-value-invalid"),
        ("latency_growth = 2", 'latency_growth = "2"', "recipe-value-invalid"),
        ("latency_growth = 2", "latency_growth = -2", "recipe-value-invalid"),
        ("within = 100", "", "recipe-key-missing"),
        ('inputs = "model:golden"', 'inputs = "m:g"\nanchor = "g"', "recipe-golden-twice"),
        ('inputs = "model:golden"', 'inputs = "golden"', "function-malformed"),
        ("keep = 3", "keep = 0", "recipe-value-invalid"),
        ("[targets.aoti]", "[targets", "toml-invalid"),
        (
            "[targets.safetensors]\n[targets.aoti]\ntolerance = 1e-3",
            "",
            "recipe-without-targets",
        ),
    ],
)
def test_a_typo_is_told(tmp_path: Path, old: str, new: str, code: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, check=has_code(code)) as error:
        recipe.read_recipe(write(tmp_path, GOOD.replace(old, new)))
    assert "recipe.toml" in str(error.value) or code.startswith("target")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [("factory =", "facory =", "factory"), ("[limits]", "[limit]", "limits"), ("keep", "x", None)],
)
def test_what_was_meant(tmp_path: Path, old: str, new: str, meant: str | None) -> None:
    with pytest.raises(UsageError) as error:
        recipe.read_recipe(write(tmp_path, GOOD.replace(old, new)))
    assert error.value.fields["near"] == meant


def test_the_targets_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        recipe.read_recipe(write(tmp_path, GOOD.replace("[targets.aoti]", "[targets.aotin]")))
    assert error.value.fields["target"] == "aotin"
    assert {"aoti", "onnx", "safetensors"} <= set(error.value.fields["known"])  # type: ignore[call-overload]


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("recipe-not-found")):
        recipe.read_recipe(tmp_path / "none.toml")
