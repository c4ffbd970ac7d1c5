"""ONNX; needs onnxscript and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from headway.errors import MissingExtra, PublishFailed
from headway.publish.targets.aoti import export_program
from headway.publish.targets.base import SnapshotContent, Work

FILE = "model.onnx"
MAX_BYTES = (1 << 31) - 1  # maximum size of an ONNX model with embedded weights
NEEDS = "the target onnx needs onnxscript and onnxruntime"


@dataclass(frozen=True)
class Onnx:
    """Served by ONNX Runtime."""

    tolerance: float = 1e-3

    def make(self, work: Work) -> list[str]:
        """Write the model with embedded weights."""
        try:
            import onnxscript  # noqa: F401
        except ImportError:
            raise MissingExtra(NEEDS, extra="onnx") from None
        size = sum(tensor.nbytes for tensor in work.model.state_dict().values())
        if size > MAX_BYTES:
            raise PublishFailed(
                f"a model of {size} bytes does not fit into one ONNX file",
                code="model-too-large",
            )
        program = torch.onnx.export(export_program(work), dynamo=True, verbose=False)
        assert program is not None
        program.save(str(work.folder / FILE), external_data=False)
        return [FILE]

    def open(self, content: SnapshotContent) -> Callable[..., Any]:
        """Return a function that calls the ONNX session with tensors."""
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra(NEEDS, extra="onnx") from None
        session = onnxruntime.InferenceSession(str(content.files[FILE]))
        names = [one.name for one in session.get_inputs()]

        def served(*args: Any, **kwargs: Any) -> list[Tensor]:
            leaves = pytree.tree_leaves((args, kwargs))
            feeds = {name: one.numpy() for name, one in zip(names, leaves, strict=True)}
            return [torch.from_numpy(one) for one in session.run(None, feeds)]

        return served
