"""Compiles a training step on a fast batch while the real data is on its way.

The step runs once, for real, in a thread: forward, backward and whatever else it does. Afterwards
everything is as it was: parameters, buffers, gradients, optimizers, random numbers; no rank has
communicated, and no step was counted.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from headway import sdk
from headway.errors import HeadwayError, UsageError
from headway.startup.batches.schema import Schema


class AheadFailed(HeadwayError):
    """The step could not be run on the fast batch; its own exception is the cause."""


class CompileAhead:
    """A step that is compiled before its first batch is there.

    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(fast_batch(...))
    batch = next(batches)
    ahead.wait()
    step(batch)

    `modules` and `optimizers` are all that the step changes. With no optimizer among them the
    parameters are not copied: then the step must not update them.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        *,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self.step = step
        self.modules = list(modules)
        self.optimizers = list(optimizers)
        self.seconds = 0.0
        self.schema: Schema | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        gathering = [module for module in self.modules if _gathers(module)]
        if gathering:
            kind = type(gathering[0]).__name__
            raise UsageError(
                f"{kind} communicates in every forward pass; it cannot be compiled ahead by a "
                "thread, as the ranks would meet in another order"
            )

    def start(self, batch: Any) -> CompileAhead:
        """Begin in a thread; without a batch there is nothing to do."""
        if batch is None:
            return self
        with contextlib.suppress(HeadwayError):  # a batch of an odd kind is compiled all the same
            self.schema = Schema.of(batch)
        device = torch.cuda.current_device() if torch.cuda._initialized else None
        self._thread = threading.Thread(
            target=self._run, args=(batch, device), name="headway-ahead", daemon=True
        )
        self._thread.start()
        return self

    def wait(self) -> CompileAhead:
        """Until it is done; AheadFailed if the step raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            text = f"the step failed on the fast batch: {type(error).__name__}: {error}"
            raise AheadFailed(text) from error
        return self

    def differences(self, batch: Any) -> list[str]:
        """In what the real batch is not what was compiled for; each may be a recompile."""
        return [] if self.schema is None else self.schema.differences(batch)

    def _run(self, batch: Any, device: int | None) -> None:
        if device is not None:
            torch.cuda.set_device(device)
        begun = time.monotonic()
        try:
            with sdk.span("pt2_compile"), self._nothing_happened():
                self.step(batch)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - begun

    @contextlib.contextmanager
    def _nothing_happened(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_uncounted())
            stack.enter_context(_random_numbers())
            for module in self.modules:
                stack.enter_context(_alone(module))
            stack.enter_context(_tensors(self.modules, parameters=bool(self.optimizers)))
            for optimizer in self.optimizers:
                stack.enter_context(_optimizer(optimizer))
            yield


def _gathers(module: nn.Module) -> bool:
    """Whether its forward pass needs the other ranks."""
    names = {"FSDPModule", "FullyShardedDataParallel", "DistributedModelParallel"}
    kinds = {kind.__name__ for part in module.modules() for kind in type(part).__mro__}
    return bool(kinds & names)


@contextlib.contextmanager
def _uncounted() -> Iterator[None]:
    """Optimizer steps in here are no training steps, for us or anybody who listens to them."""
    optim: Any = sys.modules["torch.optim.optimizer"]
    hooks = optim._global_optimizer_post_hooks
    held = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(held)


@contextlib.contextmanager
def _random_numbers() -> Iterator[None]:
    cpu = torch.get_rng_state()
    gpu = torch.cuda.get_rng_state() if torch.cuda._initialized else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)


@contextlib.contextmanager
def _alone(module: nn.Module) -> Iterator[None]:
    """DDP neither reduces gradients nor sends buffers in here."""
    parts = [
        part for part in module.modules() if isinstance(part, nn.parallel.DistributedDataParallel)
    ]
    held = [(part.require_backward_grad_sync, part.require_forward_param_sync) for part in parts]
    for part in parts:
        part.require_backward_grad_sync = part.require_forward_param_sync = False
    try:
        yield
    finally:
        for part, (backward, forward) in zip(parts, held, strict=True):
            part.require_backward_grad_sync = backward
            part.require_forward_param_sync = forward


@contextlib.contextmanager
def _tensors(modules: Sequence[nn.Module], *, parameters: bool) -> Iterator[None]:
    owned = [p for module in modules for p in module.parameters()]
    changing = [b for module in modules for b in module.buffers()]
    changing += owned if parameters else []
    values = [tensor.detach().clone() for tensor in changing]
    grads = [p.grad for p in owned]
    for parameter in owned:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(changing, values, strict=True):
                tensor.copy_(value)
        for parameter, grad in zip(owned, grads, strict=True):
            parameter.grad = grad


@contextlib.contextmanager
def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    state = copy.deepcopy(dict(optimizer.state))
    keys = list(optimizer.state)
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    settings = copy.deepcopy(groups)
    try:
        yield
    finally:
        optimizer.state.clear()
        for key, value in zip(keys, state.values(), strict=True):
            optimizer.state[key] = value
        for group, held in zip(optimizer.param_groups, settings, strict=True):
            group.update(held)
