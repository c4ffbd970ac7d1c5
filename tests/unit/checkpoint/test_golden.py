"""What is recorded with an anchor, and what the model is like afterwards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.checkpoint import golden
from headway.checkpoint.checkpointer import Checkpointer
from headway.checkpoint.store.read import Store
from headway.publish import recipe as recipes
from headway.publish.anchor import find
from headway.publish.examine import here
from headway.publish.job import publish
from headway.publish.loading import load
from headway.publish.store import Store as Snapshots
from tests.unit.publish import served
from tests.unit.publish.made import SERVED

pytestmark = pytest.mark.timeout(60)


class Noisy(nn.Module):
    """Says something else in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.drop(self.layer(x)))
        return found


def test_the_model_is_asked_as_it_serves_and_left_as_it_was() -> None:
    model, x = Noisy(), torch.randn(4, 3, requires_grad=True)
    model.norm.eval()  # as a frozen one is kept
    seen = [buffer.clone() for buffer in model.buffers()]
    part, told, why = golden.record({"x": x}, model, alone=True)
    assert not why and told["inputs"]
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert all(map(torch.equal, seen, model.buffers()))
    assert (
        torch.equal(part["outputs"][0], model.eval()(x)) and not part["outputs"][0].is_inference()
    )
    assert torch.equal(part["inputs"][0], x) and part["inputs"][0].data_ptr() != x.data_ptr()


def test_nothing_is_compiled_for_it() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    inner, x = Noisy(), torch.randn(4, 3)
    inner.layer.compile(backend=backend)
    model = torch.compile(inner, backend=backend)
    model(x)
    before = len(graphs)
    assert before
    part, _, why = golden.record(x, model, alone=False)
    assert not why and len(part["outputs"]) == 1 and len(graphs) == before
    model(x)
    assert len(graphs) == before, "what was compiled for training still serves it"


@pytest.mark.parametrize(
    ("given", "model", "said"),
    [
        (7, nn.Linear(3, 2), "no golden inputs were recorded: example_inputs must be tensors"),
        (torch.ones(1, 4), nn.Linear(3, 2), "outputs were not recorded: RuntimeError: mat1 and"),
        (torch.ones(1, 3), None, "outputs were not recorded: no module is among the parts"),
    ],
)
def test_what_cannot_be_recorded_is_told(given: Any, model: Any, said: str, tmp_path: Path) -> None:
    """And the anchor is there all the same."""
    state = {"model": model} if model else {"weight": torch.ones(3)}
    checkpointer = Checkpointer(tmp_path, state, linger_s=0.1)
    with pytest.warns(UserWarning, match=said):
        checkpointer.anchor(3, example_inputs=given)
    checkpointer.close()
    (one,) = Store(tmp_path).checkpoints()
    names = [item.name for file in one.manifest.files for item in file.items]
    assert one.step == 3 and "golden.outputs.0" not in names
    assert ("golden.inputs.0" in names) == isinstance(given, Tensor)


def test_the_writer_that_commits_imports_torch_before_it_is_asked(tmp_path: Path) -> None:
    """Else the first anchor of a training waits for that."""
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, linger_s=0.1)
    maps = Path(f"/proc/{checkpointer._staging.found['pid']}/maps")
    until = time.monotonic() + 50
    while "libtorch" not in maps.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    checkpointer.close()


def test_an_anchor_is_all_that_a_publish_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.publish.examine.TIMED_S", 0)
    model = served.trained(3, rows=60)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer(tmp_path / "c", {"model": model, "optimizer": optimizer})
    checkpointer.save(1)
    memories = checkpointer._staging._memories
    dense, sparse = served.golden()
    checkpointer.anchor(
        2,
        model_ref=f"{SERVED}:build",
        model_arguments={"rows": 60},
        example_inputs=(dense, sparse),
        extra={"mine": 1},
    )
    assert checkpointer._staging._memories is memories, "the anchor needs none of its own"
    checkpointer.save(3)
    checkpointer.close()
    assert recipes.PART == golden.PART
    (tmp_path / "recipe.toml").write_text("[targets.safetensors]\n")
    recipe = recipes.read(tmp_path / "recipe.toml")
    anchor = find(str(tmp_path / "c"))
    assert anchor.step == 2 and anchor.extra["mine"] == 1
    publish(anchor, recipe, Snapshots(tmp_path / "s"), examine=here)
    loaded = load(tmp_path / "s", factory=served.build)
    with torch.no_grad():
        assert torch.equal(loaded(dense, sparse)["logit"], model.eval()(dense, sparse)["logit"])
    again = Checkpointer(tmp_path / "c", {"model": served.build(60)}, linger_s=0.1)
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 3
