"""What a publish takes of memory, where most of the model is one table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.publish.store import Store
from tests.unit.publish.made import checkpoint, plain, state

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
PEAK = """
import sys
from headway.cli import main
from headway.publish.examine import _peak
code = main(sys.argv[1:])
print("peak", _peak())
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["store", "dcp", "file"])
def test_at_most_the_model_and_a_third_and_500_mb(kind: str, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(MODULE.format(rows=ROWS, width=WIDTH))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    model = nn.Sequential(nn.EmbeddingBag(ROWS, WIDTH, mode="sum"), nn.Linear(WIDTH, 1))
    size = sum(one.nbytes for one in model.state_dict().values())
    anchor = tmp_path / "anchor"
    given = state(model)
    if kind == "store":
        checkpoint(anchor, given)
    elif kind == "dcp":
        plain(anchor, given)
    else:
        torch.save(given, anchor)
    del model, given
    words = ["publish", "anchor", "--recipe", "recipe.toml", "--to", "store"]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    metrics = Store(tmp_path / "store").snapshot().manifest.targets["safetensors"].metrics
    peaks = int(done.stdout.split("peak")[1]), metrics["peak_mb"] * 1e6
    print(f"model {size / 1e6:.0f} MB, peaks {[round(one / 1e6) for one in peaks]} MB")
    assert max(peaks) <= 1.3 * size + 500e6
