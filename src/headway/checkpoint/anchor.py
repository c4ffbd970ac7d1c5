"""What an anchor checkpoint records for publishing: model factory, golden inputs and outputs, run.

Golden inputs, and the outputs of the model for them, are saved like other tensors of the state, as
`golden.inputs.N` and `golden.outputs.N`. Nothing is compiled for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.checkpoint.coordinator import RankCoordinator
from headway.checkpoint.state import GOLDEN_PART
from headway.checkpoint.state_tree import StateTree, unwrap
from headway.errors import HeadwayError
from headway.journal import run_files
from headway.probe import ENV_FOLDER

PART = GOLDEN_PART  # the part of the state
SERVING_INFO = "publish"  # key of `extra`: the factory, its arguments, the structure of the inputs
COLLECTIVES = ("c10d", "c10d_functional", "_c10d_functional")

GoldenTensors = dict[str, list[Tensor]]


class Notify(Protocol):
    """Reports a problem to the user."""

    def __call__(self, text: str, *, code: str) -> None: ...


class GoldenNotRecorded(HeadwayError):
    """Why golden inputs or outputs were not recorded."""


class NeedsOtherRanks(Exception):
    """The model cannot be called without the other ranks."""

    def __init__(self) -> None:
        super().__init__("the model is sharded over ranks and cannot be called on one of them")


def json_arguments(model_arguments: Mapping[str, Any], notify: Notify) -> dict[str, Any]:
    """The factory's arguments for `extra`; empty, with a note, if JSON cannot hold them."""
    try:
        json.dumps(model_arguments)
    except (TypeError, ValueError) as error:
        notify(f"the arguments of the model were not recorded: {error}", code="arguments-not-json")
        return {}
    return {"arguments": dict(model_arguments)}


def add_golden(
    tree: StateTree,
    ranks: RankCoordinator,
    example_inputs: Any,
    model: nn.Module | None,
    notify: Notify,
) -> dict[str, Any]:
    """Add the golden part to the parts of rank 0; return what `extra` says about it."""
    if ranks.rank:
        return {}
    if PART in tree.parts:
        text = f"no golden inputs were recorded: the state already has a part {PART!r}"
        notify(text, code="golden-part-taken")
        return {}
    target = tree.model if model is None else unwrap(model)
    part, fields, reason = record_golden(example_inputs, target, alone=ranks.world == 1)
    if part:
        tree.parts[PART] = part
    if reason is not None:
        notify(str(reason), code=reason.code)
    return fields


def call_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a tensor, a tuple, or a dict by name; ValueError otherwise."""
    leaves = pytree.tree_leaves(example_inputs)
    valid = isinstance(example_inputs, (Tensor, tuple, list, dict))
    if not valid or not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ValueError("a tensor, a tuple of tensors, or a dict of tensors")
    if isinstance(example_inputs, dict):
        return (), example_inputs
    return ((example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)), {}


def record_golden(
    example_inputs: Any, model: nn.Module | None, *, alone: bool
) -> tuple[GoldenTensors, dict[str, Any], GoldenNotRecorded | None]:
    """The golden part, what `extra` says about it, and why there are no outputs in it.

    `alone`: there are no other ranks.
    """
    try:
        args, kwargs = call_arguments(example_inputs)
    except ValueError as error:
        text = f"no golden inputs were recorded: example_inputs must be {error}"
        return {}, {}, GoldenNotRecorded(text, code="golden-inputs-invalid")
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    tensors: GoldenTensors = {"inputs": _cpu_copies(leaves)}
    fields = {"inputs": pytree.treespec_dumps(spec)}
    prefix = "the golden outputs were not recorded"
    if model is None:
        reason = "the state has no module, and `model` was not given"
        return (
            tensors,
            fields,
            GoldenNotRecorded(f"{prefix}: {reason}", code="golden-model-missing"),
        )
    try:
        tensors["outputs"] = _cpu_copies(_reference_outputs(model, leaves, spec, alone))
    except NeedsOtherRanks as error:
        return (
            tensors,
            fields,
            GoldenNotRecorded(f"{prefix}: {error}", code="golden-model-not-alone"),
        )
    except Exception as error:  # an error of user code must not prevent the anchor
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return tensors, fields, GoldenNotRecorded(f"{prefix}: {reason}", code="golden-model-failed")
    return tensors, fields, None


def _cpu_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Separate copies on the CPU."""
    return [tensor.detach().to("cpu", copy=True).contiguous() for tensor in tensors]


def _reference_outputs(
    model: nn.Module, leaves: Sequence[Tensor], spec: pytree.TreeSpec, alone: bool
) -> list[Tensor]:
    """The outputs of the model in evaluation mode; its modes are restored afterwards."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(isinstance(tensor, DTensor) for tensor in tensors):
        raise NeedsOtherRanks
    device = tensors[0].device if tensors else torch.device("cpu")
    args, kwargs = pytree.tree_unflatten([tensor.to(device) for tensor in leaves], spec)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(_eager())
            if not alone:
                stack.enter_context(_NoCollectives())  # type: ignore[no-untyped-call]
            outputs = model(*args, **kwargs)
    finally:
        for module, training in modes:
            module.training = training
    return [tensor for tensor in pytree.tree_leaves(outputs) if isinstance(tensor, Tensor)]


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Do not compile again for this one call."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where the other ranks, which do not take part, would be waited for."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in COLLECTIVES:
            raise NeedsOtherRanks
        return func(*args, **(kwargs or {}))


def run_identity() -> dict[str, Any]:
    """The run that records this process, if any."""
    journal = os.environ.get(ENV_FOLDER)
    if not journal:
        return {}
    path = os.path.dirname(journal)
    identity = run_files.read_identity(Path(path))
    return {"run": identity.get("run") or os.path.basename(path), "ledger": path}
