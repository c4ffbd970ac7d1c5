"""What a publish takes of memory, where most of the model is one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.peaks import peaks
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint, dcp_checkpoint, state

torch = lazy("torch")
nn = lazy("torch.nn")
ROWS, WIDTH = 800_000, 128
MODULE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.EmbeddingBag({rows}, {width}, mode="sum"), nn.Linear({width}, 1))

def golden():
    return torch.arange(40).view(8, 5)
"""
RECIPE = """
[model]
factory = "large:build"
[golden]
inputs = "large:golden"
[targets.safetensors]
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["store", "dcp", "file"])
def test_at_most_the_model_and_a_third_and_500_mb(kind: str, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(MODULE.format(rows=ROWS, width=WIDTH))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    model = nn.Sequential(nn.EmbeddingBag(ROWS, WIDTH, mode="sum"), nn.Linear(WIDTH, 1))
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    anchor = tmp_path / "anchor"
    given = state(model)
    if kind == "store":
        checkpoint(anchor, given)
    elif kind == "dcp":
        dcp_checkpoint(anchor, given)
    else:
        torch.save(given, anchor)
    del model, given
    words = ["publish", "anchor", "--recipe", "recipe.toml", "--to", "store"]
    measured = peaks(tmp_path, *words)
    print(f"model {size / 1e6:.0f} MB, peaks {[round(tensor / 1e6) for tensor in measured]} MB")
    assert max(measured) <= 1.3 * size + 500e6
