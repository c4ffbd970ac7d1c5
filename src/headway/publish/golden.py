"""Golden inputs: every target must reproduce the model's outputs on them.

They are part of a snapshot: `golden.safetensors` holds the tensors `inputs.N` and `outputs.N`, and
`config.json` says how the inputs are passed.
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
    """What a model is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All in order."""
        leaves = pytree.tree_leaves((self.args, dict(self.kwargs or {})))
        return [one for one in leaves if isinstance(one, Tensor)]

    @property
    def spec(self) -> str:
        """How the tensors are handed over, as JSON."""
        _, spec = pytree.tree_flatten((self.args, dict(self.kwargs or {})))
        return pytree.treespec_dumps(spec)

    def call(self, model: Callable[..., Any]) -> list[Tensor]:
        """What the model says: its tensors in order."""
        try:
            with torch.inference_mode():
                said = model(*self.args, **(self.kwargs or {}))
        except Exception as error:  # of the user's code
            why = f"the golden inputs cannot be asked: {describe_error(error)}"
            raise_if_transient(why, error)
            raise PublishFailed(why, code="golden-inputs-failed") from error
        return [one for one in pytree.tree_leaves(said) if isinstance(one, Tensor)]


def golden_inputs(recipe: recipes.Recipe, given: TensorSource) -> tuple[GoldenInputs, list[Tensor]]:
    """The inputs that a recipe names, and the outputs that were recorded with them, if any."""
    golden = recipe.golden
    if golden.anchor is not None:
        recorded = _anchor_tensors(given, f"{golden.anchor}.inputs.")
        if not recorded:
            raise PublishFailed(
                f"the anchor has no golden inputs {golden.anchor}.inputs.0",
                code="golden-inputs-missing",
            )
        found = _unflatten(recorded, recipe.spec) if recipe.spec else GoldenInputs(tuple(recorded))
        return found, _anchor_tensors(given, f"{golden.anchor}.outputs.")
    assert golden.inputs is not None
    make = import_function(golden.inputs, recipe.folder)
    try:
        made = make()
    except Exception as error:  # of the user's code
        raise_if_transient(
            f"{golden.inputs} cannot give inputs now: {describe_error(error)}", error
        )
        raise UsageError(
            f"{golden.inputs} cannot give inputs: {describe_error(error)}",
            code="golden-function-failed",
        ) from error
    try:
        return GoldenInputs(*call_arguments(made)), []
    except ValueError as error:
        raise UsageError(
            f"{golden.inputs} must give {error}", code="golden-inputs-malformed"
        ) from None


def _anchor_tensors(given: TensorSource, prefix: str) -> list[Tensor]:
    found: list[Tensor] = []
    while f"{prefix}{len(found)}" in given.shapes:
        found.append(read_tensor(given, f"{prefix}{len(found)}"))
    return found


def golden_tensors(given: GoldenInputs, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """As they lie in a snapshot."""
    ins = {f"inputs.{at}": one for at, one in enumerate(given.tensors)}
    return ins | {f"outputs.{at}": one for at, one in enumerate(outputs)}


def read_golden(tensors: Mapping[str, Tensor], spec: str) -> tuple[GoldenInputs, list[Tensor]]:
    """The inputs and outputs that a snapshot has."""
    ins, outs = (_numbered(tensors, prefix) for prefix in ("inputs.", "outputs."))
    return _unflatten(ins, spec), outs


def _unflatten(tensors: Sequence[Tensor], spec: str) -> GoldenInputs:
    try:
        args, kwargs = pytree.tree_unflatten(tensors, pytree.treespec_loads(spec))
        return GoldenInputs(tuple(args), dict(kwargs))
    except Exception as error:  # whatever is wrong in what somebody has written there
        text = f"the golden inputs cannot be handed over: {describe_error(error)}"
        raise PublishFailed(text, code="golden-inputs-malformed") from None


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return [tensors[f"{prefix}{at}"] for at in range(count)]


def max_difference(said: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest between outputs: absolute for small values, relative for those above 1."""
    if [one.shape for one in said] != [one.shape for one in wanted]:
        raise PublishFailed(
            f"the outputs have the shapes {[list(one.shape) for one in said]} instead of "
            f"{[list(one.shape) for one in wanted]}",
            code="golden-shape-mismatch",
        )
    worst = 0.0
    for one, other in zip(said, wanted, strict=True):
        if other.numel():
            gap = (one.double() - other.double()).abs() / (1 + other.double().abs())
            worst = max(worst, float(gap.nan_to_num(nan=float("inf")).max()))
    return worst


def all_finite(said: Sequence[Tensor]) -> bool:
    """Whether every number is one."""
    return all(bool(one.isfinite().all()) for one in said)
