"""Golden inputs: every target must reproduce the model's outputs on them.

They are part of a snapshot: `golden.safetensors` contains the tensors `inputs.N` and `outputs.N`,
and `config.json` how the inputs are passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from headway.checkpoint.anchor import call_arguments
from headway.errors import PublishFailed, UsageError
from headway.publish import recipe as recipes
from headway.publish.failures import describe_error, raise_if_transient
from headway.publish.model import import_function
from headway.publish.source import TensorSource, read_tensor

GOLDEN_FILE = "golden.safetensors"


@dataclass(frozen=True)
class GoldenInputs:
    """Arguments of a call of the model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors in order."""
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs or {})))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    @property
    def spec(self) -> str:
        """Structure of the arguments, as JSON."""
        _, spec = pytree.tree_flatten((self.args, dict(self.kwargs or {})))
        return pytree.treespec_dumps(spec)

    def call(self, model: Callable[..., Any]) -> list[Tensor]:
        """Call the model; return its output tensors in order."""
        try:
            with torch.inference_mode():
                outputs = model(*self.args, **(self.kwargs or {}))
        except Exception as error:  # of the user's code
            reason = f"the model fails on the golden inputs: {describe_error(error)}"
            raise_if_transient(reason, error)
            raise PublishFailed(reason, code="golden-inputs-failed") from error
        return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def golden_inputs(
    recipe: recipes.Recipe, source: TensorSource
) -> tuple[GoldenInputs, list[Tensor]]:
    """Golden inputs of a recipe, and the outputs recorded with them, if any."""
    golden = recipe.golden
    if golden.anchor is not None:
        recorded = _anchor_tensors(source, f"{golden.anchor}.inputs.")
        if not recorded:
            raise PublishFailed(
                f"the anchor has no golden inputs {golden.anchor}.inputs.0",
                code="golden-inputs-missing",
            )
        inputs = _unflatten(recorded, recipe.spec) if recipe.spec else GoldenInputs(tuple(recorded))
        return inputs, _anchor_tensors(source, f"{golden.anchor}.outputs.")
    assert golden.inputs is not None
    make = import_function(golden.inputs, recipe.folder)
    try:
        value = make()
    except Exception as error:  # of the user's code
        raise_if_transient(
            f"{golden.inputs} cannot return inputs now: {describe_error(error)}", error
        )
        raise UsageError(
            f"{golden.inputs} cannot return inputs: {describe_error(error)}",
            code="golden-function-failed",
        ) from error
    try:
        return GoldenInputs(*call_arguments(value)), []
    except ValueError as error:
        raise UsageError(
            f"{golden.inputs} must return {error}", code="golden-inputs-malformed"
        ) from None


def _anchor_tensors(source: TensorSource, prefix: str) -> list[Tensor]:
    tensors: list[Tensor] = []
    while f"{prefix}{len(tensors)}" in source.shapes:
        tensors.append(read_tensor(source, f"{prefix}{len(tensors)}"))
    return tensors


def golden_tensors(inputs: GoldenInputs, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors of a snapshot's golden file, by name."""
    tensors = {f"inputs.{index}": tensor for index, tensor in enumerate(inputs.tensors)}
    return tensors | {f"outputs.{index}": tensor for index, tensor in enumerate(outputs)}


def read_golden(tensors: Mapping[str, Tensor], spec: str) -> tuple[GoldenInputs, list[Tensor]]:
    """Golden inputs and outputs of a snapshot."""
    ins, outs = (_numbered(tensors, prefix) for prefix in ("inputs.", "outputs."))
    return _unflatten(ins, spec), outs


def _unflatten(tensors: Sequence[Tensor], spec: str) -> GoldenInputs:
    try:
        args, kwargs = pytree.tree_unflatten(tensors, pytree.treespec_loads(spec))
        return GoldenInputs(tuple(args), dict(kwargs))
    except Exception as error:  # the structure may be malformed in any way
        text = f"the structure of the golden inputs is invalid: {describe_error(error)}"
        raise PublishFailed(text, code="golden-inputs-malformed") from None


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return [tensors[f"{prefix}{at}"] for at in range(count)]


def max_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest difference of outputs: absolute for small values, relative for values above 1."""
    if [output.shape for output in outputs] != [output.shape for output in expected]:
        raise PublishFailed(
            f"the outputs have the shapes {[list(output.shape) for output in outputs]} instead of "
            f"{[list(output.shape) for output in expected]}",
            code="golden-shape-mismatch",
        )
    worst = 0.0
    for output, other in zip(outputs, expected, strict=True):
        if other.numel():
            gap = (output.double() - other.double()).abs() / (1 + other.double().abs())
            worst = max(worst, float(gap.nan_to_num(nan=float("inf")).max()))
    return worst


def all_finite(outputs: Sequence[Tensor]) -> bool:
    """Whether all values are finite."""
    return all(bool(output.isfinite().all()) for output in outputs)
