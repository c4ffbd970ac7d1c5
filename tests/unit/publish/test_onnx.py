"""ONNX, where it is installed; where it is not, what to type."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headway.errors import MissingExtra
from headway.publish import load
from headway.publish.anchor import find_anchor
from headway.publish.store import SnapshotStore
from headway.publish.validate import check_here
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint, recipe, state

torch = lazy("torch")
publish = lazy("headway.publish.job:publish")
served = lazy("tests.unit.publish.dlrm")

INSTALLED = importlib.util.find_spec("onnxscript") and importlib.util.find_spec("onnxruntime")


def publish_it(folder: Path) -> None:
    checkpoint(folder / "anchor", state(served.trained()))
    parsed = recipe(folder, **{"targets.onnx": ""})
    publish(
        find_anchor(str(folder / "anchor")),
        parsed,
        SnapshotStore(folder / "store"),
        check_target=check_here,
    )


@pytest.mark.skipif(bool(INSTALLED), reason="it is installed")
def test_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra) as error:
        publish_it(tmp_path)
    assert error.value.fields["extra"] == "onnx"


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="onnxscript and onnxruntime are not installed")
@pytest.mark.filterwarnings("ignore")
def test_served_by_onnx_runtime(tmp_path: Path) -> None:
    publish_it(tmp_path)
    dense, sparse = served.golden()
    wanted = served.trained().eval()(dense[:4], [ids[:4] for ids in sparse])
    outputs = load(tmp_path / "store", target="onnx")(dense[:4], [ids[:4] for ids in sparse])
    assert torch.allclose(outputs[0], wanted["logit"], atol=1e-3)
