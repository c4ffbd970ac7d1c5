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


def json_arguments(model_arguments: Mapping[str, Any], say: Notify) -> dict[str, Any]:
    """The factory's arguments for `extra`; empty, with a note, if JSON cannot hold them."""
    try:
        json.dumps(model_arguments)
    except (TypeError, ValueError) as error:
        say(f"the arguments of the model were not recorded: {error}", code="arguments-not-json")
        return {}
    return {"arguments": dict(model_arguments)}


def add_golden(
    parts: StateTree, ranks: RankCoordinator, given: Any, model: nn.Module | None, say: Notify
) -> dict[str, Any]:
    """Add the golden part to the parts of rank 0; return what `extra` says about it."""
    if ranks.rank:
        return {}
    if PART in parts.parts:
        text = f"no golden inputs were recorded: the state already has a part {PART!r}"
        say(text, code="golden-part-taken")
        return {}
    asked = parts.model if model is None else unwrap(model)
    part, told, why = record_golden(given, asked, alone=ranks.world == 1)
    if part:
        parts.parts[PART] = part
    if why is not None:
        say(str(why), code=why.code)
    return told


def call_arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a tensor, a tuple, or a dict by name; ValueError otherwise."""
    leaves = pytree.tree_leaves(given)
    known = isinstance(given, (Tensor, tuple, list, dict))
    if not known or not leaves or not all(isinstance(one, Tensor) for one in leaves):
        raise ValueError("a tensor, a tuple of tensors, or a dict of tensors")
    if isinstance(given, dict):
        return (), given
    return ((given,) if isinstance(given, Tensor) else tuple(given)), {}


def record_golden(
    given: Any, model: nn.Module | None, *, alone: bool
) -> tuple[GoldenTensors, dict[str, Any], GoldenNotRecorded | None]:
    """The golden part, what `extra` says about it, and why there are no outputs in it.

    `alone`: there are no other ranks.
    """
    try:
        args, kwargs = call_arguments(given)
    except ValueError as error:
        text = f"no golden inputs were recorded: example_inputs must be {error}"
        return {}, {}, GoldenNotRecorded(text, code="golden-inputs-invalid")
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    found: GoldenTensors = {"inputs": _cpu_copies(leaves)}
    told = {"inputs": pytree.treespec_dumps(spec)}
    none = "the golden outputs were not recorded"
    if model is None:
        why = "the state has no module, and `model` was not given"
        return found, told, GoldenNotRecorded(f"{none}: {why}", code="golden-model-missing")
    try:
        found["outputs"] = _cpu_copies(_reference_outputs(model, leaves, spec, alone))
    except NeedsOtherRanks as error:
        return found, told, GoldenNotRecorded(f"{none}: {error}", code="golden-model-not-alone")
    except Exception as error:  # an error of user code must not prevent the anchor
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return found, told, GoldenNotRecorded(f"{none}: {why}", code="golden-model-failed")
    return found, told, None


def _cpu_copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Separate copies on the CPU."""
    return [one.detach().to("cpu", copy=True).contiguous() for one in tensors]


def _reference_outputs(
    model: nn.Module, leaves: Sequence[Tensor], spec: pytree.TreeSpec, alone: bool
) -> list[Tensor]:
    """The outputs of the model in evaluation mode; its modes are restored afterwards."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(isinstance(one, DTensor) for one in tensors):
        raise NeedsOtherRanks
    device = tensors[0].device if tensors else torch.device("cpu")
    args, kwargs = pytree.tree_unflatten([one.to(device) for one in leaves], spec)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(_eager())
            if not alone:
                stack.enter_context(_NoCollectives())  # type: ignore[no-untyped-call]
            said = model(*args, **kwargs)
    finally:
        for module, training in modes:
            module.training = training
    return [one for one in pytree.tree_leaves(said) if isinstance(one, Tensor)]


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
    known = run_files.read_identity(Path(path))
    return {"run": known.get("run") or os.path.basename(path), "ledger": path}
