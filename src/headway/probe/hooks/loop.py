"""The training loop: optimizer steps, waits for data of every DataLoader, and gradients written.

Steps come through torch's global post-step hook. Making the iterator of a loader counts as a wait,
because its workers are started there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe import import_hook, patching, step_clock
from headway.probe.patching import spanned, wrap
from headway.probe.recorder import guard, recorder

MAX_PARAMETERS = 20  # parameters to check for gradients


def torch_loaded(torch: ModuleType) -> None:
    """torch"""
    step_clock.grad_enabled = torch.is_grad_enabled
    step_clock.gradients = gradients
    patching.tracing = torch.compiler.is_dynamo_compiling
    spanned(torch, "compile", "compile_import")  # the call does not compile yet, but imports a lot
    if recorder.rank is not None:
        recorder.start()


def install_optimizer(optimizer: ModuleType) -> None:
    """torch.optim.optimizer"""
    step_clock.optimizer_stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(step_clock.optimizer_stepped)
    step_clock.on_first_step.append(lambda t: import_hook.stop_timing())


def gradients() -> Callable[[], bool]:
    """Return a check whether gradients of the counted optimizer were written since this call."""
    before = [_version(parameter) for parameter in _parameters()]

    def written() -> bool:
        now = list(_parameters())
        return len(now) == len(before) and any(map(_is_written, before, now))

    return written


def _parameters() -> Iterator[Any]:
    groups = getattr(step_clock.counted_optimizer(), "param_groups", ())
    return islice((parameter for group in groups for parameter in group["params"]), MAX_PARAMETERS)


def _version(parameter: Any) -> tuple[Callable[[], Any], int]:
    gradient = parameter.grad
    if gradient is None:
        return lambda: None, 0
    return weakref.ref(gradient), 0 if gradient.is_inference() else gradient._version


def _is_written(before: tuple[Callable[[], Any], int], parameter: Any) -> bool:
    """Whether the gradient was written; setting it to None does not count."""
    (old_gradient, old_version), (new_gradient, new_version) = before, _version(parameter)
    return new_gradient() is not None and (
        new_gradient() is not old_gradient() or new_version != old_version
    )


def install_dataloader(dataloader: ModuleType) -> None:
    """torch.utils.data.dataloader"""
    base = dataloader._BaseDataLoaderIter
    base.__next__ = step_clock.timed_fetch(base.__next__)
    wrap(dataloader.DataLoader, "__iter__", _make_iterator)


def _make_iterator(original: Callable[..., Any], self: Any) -> Any:
    """Time the creation of an iterator, which starts the workers."""
    guard("data", recorder.start)
    start = monotonic_ns()
    iterator = original(self)
    guard("data", step_clock.note_new_iterator, start, monotonic_ns())
    return iterator
