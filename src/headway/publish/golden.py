"""Inputs on which everything that is made of a model has to agree, and what the model says to them.

They go with a snapshot, so that whoever serves it can ask the same: `golden.safetensors` has the
tensors `inputs.N` and `outputs.N`, `config.json` how the inputs are handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from headway.checkpoint.golden import handed_over
from headway.errors import PublishFailed, UsageError
from headway.publish import recipe as recipes
from headway.publish.model import named, told
from headway.publish.source import Source, whole
from headway.publish.transient import raise_if_transient

FILE = "golden.safetensors"


@dataclass(frozen=True)
class Inputs:
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
            why = f"the golden inputs cannot be asked: {told(error)}"
            raise_if_transient(why, error)
            raise PublishFailed(why, code="golden-inputs-failed") from error
        return [one for one in pytree.tree_leaves(said) if isinstance(one, Tensor)]


def inputs(recipe: recipes.Recipe, given: Source) -> tuple[Inputs, list[Tensor]]:
    """The inputs that a recipe names, and the outputs that were recorded with them, if any."""
    golden = recipe.golden
    if golden.anchor is not None:
        recorded = _recorded(given, f"{golden.anchor}.inputs.")
        if not recorded:
            raise PublishFailed(
                f"the anchor has no golden inputs {golden.anchor}.inputs.0",
                code="golden-inputs-missing",
            )
        found = _handed(recorded, recipe.spec) if recipe.spec else Inputs(tuple(recorded))
        return found, _recorded(given, f"{golden.anchor}.outputs.")
    assert golden.inputs is not None
    make = named(golden.inputs, recipe.folder)
    try:
        made = make()
    except Exception as error:  # of the user's code
        raise_if_transient(f"{golden.inputs} cannot give inputs now: {told(error)}", error)
        raise UsageError(
            f"{golden.inputs} cannot give inputs: {told(error)}", code="golden-function-failed"
        ) from error
    try:
        return Inputs(*handed_over(made)), []
    except ValueError as error:
        raise UsageError(
            f"{golden.inputs} must give {error}", code="golden-inputs-malformed"
        ) from None


def _recorded(given: Source, prefix: str) -> list[Tensor]:
    found: list[Tensor] = []
    while f"{prefix}{len(found)}" in given.shapes:
        found.append(whole(given, f"{prefix}{len(found)}"))
    return found


def kept(given: Inputs, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """As they lie in a snapshot."""
    ins = {f"inputs.{at}": one for at, one in enumerate(given.tensors)}
    return ins | {f"outputs.{at}": one for at, one in enumerate(outputs)}


def read(tensors: Mapping[str, Tensor], spec: str) -> tuple[Inputs, list[Tensor]]:
    """The inputs and outputs that a snapshot has."""
    ins, outs = (_numbered(tensors, prefix) for prefix in ("inputs.", "outputs."))
    return _handed(ins, spec), outs


def _handed(tensors: Sequence[Tensor], spec: str) -> Inputs:
    try:
        args, kwargs = pytree.tree_unflatten(tensors, pytree.treespec_loads(spec))
        return Inputs(tuple(args), dict(kwargs))
    except Exception as error:  # whatever is wrong in what somebody has written there
        text = f"the golden inputs cannot be handed over: {told(error)}"
        raise PublishFailed(text, code="golden-inputs-malformed") from None


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return [tensors[f"{prefix}{at}"] for at in range(count)]


def difference(said: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
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


def finite(said: Sequence[Tensor]) -> bool:
    """Whether every number is one."""
    return all(bool(one.isfinite().all()) for one in said)
