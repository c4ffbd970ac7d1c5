"""What is recorded with an anchor, and what the model is like afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.store import Store
from headway.checkpoint.writer import client
from headway.errors import HeadwayWarning
from headway.publish import recipe as recipes
from tests.support import lazy, wait_until
from tests.unit.checkpoint.buffer_maps import mapped_buffers

torch = lazy("torch")
nn = lazy("torch.nn")
recorder = lazy("headway.checkpoint.anchor")
Checkpointer = lazy("headway.checkpoint.checkpointer:Checkpointer")
find_anchor = lazy("headway.publish.anchor:find_anchor")
check_here = lazy("headway.publish.validate:check_here")
publish = lazy("headway.publish.job:publish")
load = lazy("headway.publish.loading:load")
SnapshotStore = lazy("headway.publish.store:SnapshotStore")
Noisy = lazy("tests.unit.checkpoint.torch_classes:Noisy")
served = lazy("tests.unit.publish.dlrm")

pytestmark = pytest.mark.timeout(60)


def test_the_model_is_asked_as_it_serves_and_left_as_it_was() -> None:
    model, x = Noisy(), torch.randn(4, 3, requires_grad=True)
    model.norm.eval()  # as a frozen one is kept
    seen = [buffer.clone() for buffer in model.buffers()]
    part, told, why = recorder.record_golden({"x": x}, model, alone=True)
    assert why is None and told["inputs"]
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
    part, _, why = recorder.record_golden(x, model, alone=False)
    assert why is None and len(part["outputs"]) == 1 and len(graphs) == before
    model(x)
    assert len(graphs) == before, "what was compiled for training still serves it"


@pytest.mark.parametrize(
    ("inputs", "parts", "code"),
    [
        (lambda: 7, lambda: {"model": nn.Linear(3, 2)}, "golden-inputs-invalid"),
        (lambda: torch.ones(1, 4), lambda: {"model": nn.Linear(3, 2)}, "golden-model-failed"),
        (lambda: torch.ones(1, 3), lambda: {"w": torch.ones(3)}, "golden-model-missing"),
    ],
)
@pytest.mark.usefixtures("writers")
def test_what_cannot_be_recorded_is_told(
    inputs: Callable[[], Any], parts: Callable[[], Any], code: str, tmp_path: Path
) -> None:
    """And the anchor is there all the same."""
    given = inputs()
    checkpointer = Checkpointer(tmp_path, parts(), writer_idle_s=0.1)
    with pytest.warns(HeadwayWarning, match=rf"\[{code}\]"):
        checkpointer.anchor(3, example_inputs=given)
    checkpointer.close()
    (one,) = Store(tmp_path).checkpoints()
    names = [item.name for file in one.manifest.files for item in file.items]
    assert one.step == 3 and "golden.outputs.0" not in names
    assert ("golden.inputs.0" in names) == isinstance(given, torch.Tensor)


def test_the_writer_that_commits_imports_torch_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first anchor of a training waits for that."""
    monkeypatch.setattr(client, "child_processes", [])
    checkpointer = Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}, writer_idle_s=0.1)
    (writer,) = client.child_processes
    maps = Path(f"/proc/{writer.pid}/maps")
    wait_until(lambda: "libtorch" in maps.read_text(), 50, every=0.05)
    checkpointer.close()
    assert writer.wait(20) == 0


@pytest.mark.usefixtures("writers")
def test_an_anchor_is_all_that_a_publish_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)
    model = served.trained(3, rows=60)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer(tmp_path / "c", {"model": model, "optimizer": optimizer})
    checkpointer.save(1)
    before = mapped_buffers()
    dense, sparse = served.golden()
    checkpointer.anchor(
        2,
        model_ref="tests.unit.publish.dlrm:build",
        model_arguments={"rows": 60},
        example_inputs=(dense, sparse),
        extra={"mine": 1},
    )
    assert mapped_buffers() == before != set(), "the anchor needs none of its own"
    checkpointer.save(3)
    checkpointer.close()
    assert recipes.GOLDEN_PART == recorder.PART
    (tmp_path / "recipe.toml").write_text("[targets.safetensors]\n")
    recipe = recipes.read_recipe(tmp_path / "recipe.toml")
    anchor = find_anchor(str(tmp_path / "c"))
    assert anchor.step == 2 and anchor.extra["mine"] == 1
    publish(anchor, recipe, SnapshotStore(tmp_path / "s"), check_target=check_here)
    loaded = load(tmp_path / "s", factory=served.build)
    with torch.no_grad():
        assert torch.equal(loaded(dense, sparse)["logit"], model.eval()(dense, sparse)["logit"])
    again = Checkpointer(tmp_path / "c", {"model": served.build(60)}, writer_idle_s=0.1)
    restored = again.restore()
    again.close()
    assert restored is not None and restored.step == 3
