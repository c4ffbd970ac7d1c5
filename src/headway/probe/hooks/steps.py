"""Every optimizer step, of every optimizer, through torch's own global hook."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any

from headway.probe import hooks, imports, pace
from headway.probe.hooks import spanned
from headway.probe.recorder import recorder


def torch_loaded(torch: ModuleType) -> None:
    """`import torch` is done."""
    pace.grad_enabled = torch.is_grad_enabled
    pace.gradients = gradients
    hooks.tracing = torch.compiler.is_dynamo_compiling
    spanned(torch, "compile", "compile_import")  # the call compiles nothing yet, but imports much
    if recorder.rank is not None:
        recorder.start()


def install_optimizer(optimizer: ModuleType) -> None:
    """torch.optim.optimizer"""
    pace.optimizer_stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(pace.optimizer_stepped)
    pace.on_first_step.append(lambda t: imports.stop_timing())


MAX_PARAMETERS = 20  # parameters, while it is not known whether a batch is trained on


def gradients() -> Callable[[], bool]:
    """Whether gradients of the optimizer whose steps count have been written since this call."""
    before = [_version(parameter) for parameter in _parameters()]

    def written() -> bool:
        now = list(_parameters())
        return len(now) == len(before) and any(map(_is_written, before, now))

    return written


def _parameters() -> Iterator[Any]:
    groups = getattr(pace.counted_optimizer(), "param_groups", ())
    return islice((parameter for group in groups for parameter in group["params"]), MAX_PARAMETERS)


def _version(parameter: Any) -> tuple[Callable[[], Any], int]:
    gradient = parameter.grad
    if gradient is None:
        return lambda: None, 0
    return weakref.ref(gradient), 0 if gradient.is_inference() else gradient._version


def _is_written(before: tuple[Callable[[], Any], int], parameter: Any) -> bool:
    """A gradient that was only set to None was not written."""
    (old, old_version), (new, version) = before, _version(parameter)
    return new() is not None and (new() is not old() or version != old_version)
