"""What a publish asks of a model, recorded with an anchor while the training still has the model.

Inputs on which everything has to agree, and what the model says to them, are a part of the
checkpoint like any other: `golden.inputs.N` and `golden.outputs.N`. Nothing is compiled for it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.checkpoint.ranks import Ranks
from headway.checkpoint.state import GOLDEN, Parts, unwrapped
from headway.errors import HeadwayError

PART = GOLDEN  # of the state
TOLD = "publish"  # of `extra`: the factory, its arguments, how the inputs are handed over
COLLECTIVES = ("c10d", "c10d_functional", "_c10d_functional")

Recorded = dict[str, list[Tensor]]


class Say(Protocol):
    """Tells a person of a problem."""

    def __call__(self, text: str, *, code: str) -> None: ...


class NotRecorded(HeadwayError):
    """Why there are no golden inputs, or outputs."""


class NotAlone(Exception):
    """The model needs its other ranks to answer."""

    def __init__(self) -> None:
        super().__init__("the model is spread over ranks, and cannot be asked on one of them")


def plain(model_arguments: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """What is told of the factory's arguments; nothing, which is said, if JSON cannot hold them."""
    try:
        json.dumps(model_arguments)
    except (TypeError, ValueError) as error:
        say(f"the arguments of the model were not recorded: {error}", code="arguments-not-json")
        return {}
    return {"arguments": dict(model_arguments)}


def put(
    parts: Parts, ranks: Ranks, given: Any, model: nn.Module | None, say: Say
) -> dict[str, Any]:
    """Rank 0 has the golden part among its parts; what is told of it."""
    if ranks.rank:
        return {}
    if PART in parts.parts:
        text = f"no golden inputs were recorded: the state has a part {PART!r}"
        say(text, code="golden-part-taken")
        return {}
    asked = parts.model if model is None else unwrapped(model)
    part, told, why = record(given, asked, alone=ranks.world == 1)
    if part:
        parts.parts[PART] = part
    if why is not None:
        say(str(why), code=why.code)
    return told


def handed_over(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from a tensor, a tuple of them, or a dict by name; ValueError if it is neither."""
    leaves = pytree.tree_leaves(given)
    known = isinstance(given, (Tensor, tuple, list, dict))
    if not known or not leaves or not all(isinstance(one, Tensor) for one in leaves):
        raise ValueError("tensors: one, a tuple, or a dict by name")
    if isinstance(given, dict):
        return (), given
    return ((given,) if isinstance(given, Tensor) else tuple(given)), {}


def record(
    given: Any, model: nn.Module | None, *, alone: bool
) -> tuple[Recorded, dict[str, Any], NotRecorded | None]:
    """The part of the checkpoint, what is told of it, and why there are no outputs in it.

    `alone`: there are no other ranks.
    """
    try:
        args, kwargs = handed_over(given)
    except ValueError as error:
        text = f"no golden inputs were recorded: example_inputs must be {error}"
        return {}, {}, NotRecorded(text, code="golden-inputs-invalid")
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    found: Recorded = {"inputs": _kept(leaves)}
    told = {"inputs": pytree.treespec_dumps(spec)}
    none = "the golden outputs were not recorded"
    if model is None:
        why = "no module is among the parts of the state, and none was given as `model`"
        return found, told, NotRecorded(f"{none}: {why}", code="golden-model-missing")
    try:
        found["outputs"] = _kept(_asked(model, leaves, spec, alone))
    except NotAlone as error:
        return found, told, NotRecorded(f"{none}: {error}", code="golden-model-not-alone")
    except Exception as error:  # of the user's code: the anchor counts for more
        why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return found, told, NotRecorded(f"{none}: {why}", code="golden-model-failed")
    return found, told, None


def _kept(tensors: Sequence[Tensor]) -> list[Tensor]:
    """On the CPU, and nobody else's."""
    return [one.detach().to("cpu", copy=True).contiguous() for one in tensors]


def _asked(
    model: nn.Module, leaves: Sequence[Tensor], spec: pytree.TreeSpec, alone: bool
) -> list[Tensor]:
    """What the model says as it would serve; afterwards it is in the mode that it was in."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(isinstance(one, DTensor) for one in tensors):
        raise NotAlone
    device = tensors[0].device if tensors else torch.device("cpu")
    args, kwargs = pytree.tree_unflatten([one.to(device) for one in leaves], spec)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(_uncompiled())
            if not alone:
                stack.enter_context(_Alone())  # type: ignore[no-untyped-call]
            said = model(*args, **kwargs)
    finally:
        for module, training in modes:
            module.training = training
    return [one for one in pytree.tree_leaves(said) if isinstance(one, Tensor)]


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """What was compiled for training is not compiled again for this one call."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where the other ranks, who are not asked, would be waited for."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in COLLECTIVES:
            raise NotAlone
        return func(*args, **(kwargs or {}))
