"""Compile a training step with a fast batch while the real data is loading.

The step runs once, completely. Afterwards parameters, buffers, gradients, optimizer state and
random states are restored, and no step is counted. It runs in a background thread that never
communicates, or in the calling thread of all ranks at the same time.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headway import sdk
from headway.errors import HeadwayError, Reason, UsageError
from headway.startup.batch_schema import Schema
from headway.torch_threads import TorchThread

PATIENCE_S = 10.0  # how long the end of the process waits for the compiler
THREAD_NAME = "headway-ahead"


class AheadFailed(HeadwayError):
    """The step could not be run on the fast batch; its own exception is the cause."""

    code = "ahead-failed"


class CompileAhead:
    """Compile a step before its first batch is available.

    ahead = CompileAhead(step, modules=[model], optimizers=[optimizer]).start(fast_batch(...))
    batch = next(batches)
    ahead.wait()
    step(batch)

    `modules` and `optimizers` are everything that the step changes. Without optimizers the
    parameters are not copied, and the step must not update them. With `collective=True` all ranks
    call `start` at the same point, it returns when the step is done, and the step may communicate.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        *,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer] = (),
        collective: bool = False,
    ) -> None:
        self.step = step
        self.modules = list(modules)
        self.optimizers = list(optimizers)
        self.collective = collective
        self.seconds = 0.0
        self.schema: Schema | None = None
        self._thread: TorchThread | None = None
        self._error: BaseException | None = None
        for module in self.modules:
            _check_supported(module, collective)

    def start(self, batch: Any) -> CompileAhead:
        """Start the thread, or run now if collective; does nothing if `batch` is None."""
        if not (_all_have(batch) if self.collective else batch is not None):
            return self
        with contextlib.suppress(HeadwayError):  # a batch without a schema is compiled too
            self.schema = Schema.learn(batch)
        device = torch.cuda.current_device() if torch.cuda._initialized else None
        if self.collective:
            self._run(batch, device, _rng_restored())
            return self
        random = contextlib.ExitStack()
        random.enter_context(
            _seed_draws.kept_apart()
        )  # before this thread draws random numbers again
        self._thread = TorchThread(
            self._run, (batch, device, random), name=THREAD_NAME, patience_s=PATIENCE_S
        )
        self._thread.start()
        return self

    def wait(self) -> CompileAhead:
        """Wait until it is done; raises AheadFailed if the step raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            text = f"the step failed on the fast batch: {type(error).__name__}: {error}"
            raise AheadFailed(text) from error
        return self

    def differences(self, batch: Any) -> list[Reason]:
        """How the real batch differs from the fast batch; each difference may cause a recompile."""
        return [] if self.schema is None else self.schema.differences(batch)

    def _run(
        self, batch: Any, device: int | None, random: contextlib.AbstractContextManager[Any]
    ) -> None:
        start = time.monotonic()
        try:
            with random, sdk.span("compile_ahead"):
                if device is not None:
                    torch.cuda.set_device(device)
                with self._state_restored():
                    self.step(batch)
        except BaseException as error:
            if self.collective and not isinstance(error, Exception):
                raise  # an interrupt, which is for the caller
            self._error = error
        self.seconds = time.monotonic() - start

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_step_hooks_off())
            stack.enter_context(_gpu_rng_restored())
            for module in self.modules:
                stack.enter_context(
                    _fsdp_resharded(module) if self.collective else _ddp_sync_off(module)
                )
            stack.enter_context(_tensors_restored(self.modules, parameters=bool(self.optimizers)))
            for optimizer in self.optimizers:
                stack.enter_context(_optimizer_restored(optimizer))
            yield


def _check_supported(module: nn.Module, collective: bool) -> None:
    """UsageError for modules that communicate in forward or whose state cannot be restored."""
    kinds = {kind for part in module.modules() for kind in _class_names(part)}
    for kind in sorted(kinds & {"FullyShardedDataParallel", "DistributedModelParallel"}):
        raise UsageError(
            f"{kind} cannot be compiled ahead: it communicates in every forward pass and has state "
            "besides its parameters (fully_shard works with collective=True)",
            code="ahead-not-possible",
        )
    if "FSDPModule" in kinds and not collective:
        raise UsageError(
            "fully_shard communicates in every forward pass, which a background thread must not "
            "do: pass collective=True and call start at the same point of all ranks",
            code="ahead-needs-together",
        )


def _class_names(module: nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}


def _all_have(batch: Any) -> bool:
    """Whether every rank has a batch: a rank without one would not join the collectives."""
    if not dist.is_available() or not dist.is_initialized():
        return batch is not None
    backends = str(dist.get_backend_config())
    on_cpu = "cpu:" in backends or "gloo" in backends
    device = torch.device("cpu") if on_cpu else torch.accelerator.current_accelerator()
    has_batch = torch.tensor([int(batch is not None)], device=device)
    dist.all_reduce(has_batch, dist.ReduceOp.MIN)
    return bool(has_batch.item())


@contextlib.contextmanager
def _step_hooks_off() -> Iterator[None]:
    """Turn off step hooks in this thread: its optimizer steps are not training steps."""
    optim: Any = sys.modules["torch.optim.optimizer"]
    hooks = optim._global_optimizer_post_hooks
    own_thread, original_hooks, filtered_hooks = threading.get_ident(), dict(hooks), {}

    def elsewhere(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return None if threading.get_ident() == own_thread else hook(*args, **kwargs)

        return call

    for key, hook in original_hooks.items():
        filtered_hooks[key] = hooks[key] = elsewhere(hook)
    try:
        yield
    finally:
        for key, hook in original_hooks.items():
            if hooks.get(key) is filtered_hooks[key]:  # it was not removed by its owner
                hooks[key] = hook


@contextlib.contextmanager
def _rng_restored() -> Iterator[None]:
    cpu = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(cpu)


@contextlib.contextmanager
def _gpu_rng_restored() -> Iterator[None]:
    gpu = torch.cuda.get_rng_state() if torch.cuda._initialized else None
    try:
        yield
    finally:
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)


class _SeedDraws:
    """Keep the random numbers of other threads apart while a step runs in its own thread.

    torch has one generator per process. The step draws from it and the compiler resets it, so a
    seed that a data loader draws at the same time would be drawn again. Therefore `Tensor.random_`
    in other threads uses a separate generator that continues from the state before the step;
    afterwards the process continues from the state of that generator.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._end: Callable[[], None]

    @contextlib.contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Entered by the thread that starts a step, exited by the thread that runs it."""
        with self._lock:
            if not self._steps:
                self._begin()
            self._steps += 1
        try:
            yield
        finally:
            with self._lock:
                self._steps -= 1
                if not self._steps:
                    self._end()

    def _begin(self) -> None:
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
        original, process = torch.Tensor.random_, os.getpid()
        own = vars(torch.Tensor).get("random_")  # None unless other code replaced it

        def random_(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                kwargs.get("generator") is not None
                or os.getpid() != process  # loader workers have their own seed
                or tensor.device.type != "cpu"
                or threading.current_thread().name == THREAD_NAME
            ):
                return original(tensor, *args, **kwargs)
            with self._lock:
                return original(tensor, *args, **{**kwargs, "generator": generator})

        def end() -> None:
            setattr(torch.Tensor, "random_", own) if own else delattr(torch.Tensor, "random_")
            torch.set_rng_state(generator.get_state())

        setattr(torch.Tensor, "random_", random_)  # noqa: B010
        self._end = end


_seed_draws = _SeedDraws()


@contextlib.contextmanager
def _ddp_sync_off(module: nn.Module) -> Iterator[None]:
    """Turn off gradient reduction and buffer broadcasts of DDP."""
    parts = [
        part for part in module.modules() if isinstance(part, nn.parallel.DistributedDataParallel)
    ]
    flags = [(part.require_backward_grad_sync, part.require_forward_param_sync) for part in parts]
    for part in parts:
        part.require_backward_grad_sync = part.require_forward_param_sync = False
    try:
        yield
    finally:
        for part, (backward, forward) in zip(parts, flags, strict=True):
            part.require_backward_grad_sync = backward
            part.require_forward_param_sync = forward


@contextlib.contextmanager
def _fsdp_resharded(module: nn.Module) -> Iterator[None]:
    """Reshard FSDP before and after, dropping parameters that the step left gathered.

    Nothing else is turned off: gradients are reduced as in training, since torch may trace that
    too (DDP's python_reducer), and every rank participates.
    """
    parts: list[Any] = [part for part in module.modules() if "FSDPModule" in _class_names(part)]
    for part in parts:
        part.reshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()


@contextlib.contextmanager
def _tensors_restored(modules: Sequence[nn.Module], *, parameters: bool) -> Iterator[None]:
    owned = [p for module in modules for p in module.parameters()]
    tensors = [b for module in modules for b in module.buffers()]
    tensors += owned if parameters else []
    values = [tensor.detach().clone() for tensor in tensors]
    grads = [p.grad for p in owned]
    for parameter in owned:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for parameter, grad in zip(owned, grads, strict=True):
            parameter.grad = grad


@contextlib.contextmanager
def _optimizer_restored(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    keys = list(optimizer.state)
    state = copy.deepcopy(list(optimizer.state.values()))
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    settings = copy.deepcopy(groups)
    try:
        yield
    finally:
        optimizer.state.clear()
        for key, value in zip(keys, state, strict=True):
            optimizer.state[key] = value
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            group.update(values)
