"""Model construction: from the first nn.Module to the last parameter, moves to a device, wrappers.

The hook stays installed after the first step: removing it would invalidate the guards of what was
compiled with it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe import patching, step_clock
from headway.probe.hooks import evaluation
from headway.probe.patching import inside, spanned, wrap
from headway.probe.recorder import guard, recorder

SPAN = "train_module_creation"


class Construction:
    """A span of model construction, from the first module to the last parameter."""

    def __init__(self) -> None:
        self.span: int | None = None
        self.last_registration = 0
        self.finished = False  # after the first step

    def on_module_init(self) -> None:
        """Called before the `__init__` of every module."""
        if self.finished or self.span is not None or inside(SPAN) or inside("compile"):
            return
        if recorder.thread() == 0:
            recorder.start()
            self.span = recorder.begin(SPAN, what="nn.Module")
            self.last_registration = monotonic_ns()

    def on_registration(self, *_: Any) -> None:
        """Called when a parameter, a buffer or a child module was registered."""
        if not patching.tracing():
            self.last_registration = monotonic_ns()

    def close_span(self) -> None:
        """Close the span at the last registration: something else begins."""
        if self.span is not None and recorder.thread() == 0:
            span, self.span = self.span, None
            recorder.end(span, self.last_registration)


def install(module: ModuleType) -> None:
    """torch.nn.modules.module"""
    construction = Construction()
    module.register_module_parameter_registration_hook(construction.on_registration)
    module.register_module_buffer_registration_hook(construction.on_registration)
    module.register_module_module_registration_hook(construction.on_registration)
    wrap(module.Module, "__init__", _wrap_init(construction))
    for name in ("to", "cuda"):
        spanned(module.Module, name, SPAN, until_first_step=True)
    recorder.before_span.append(lambda: guard("modules", construction.close_span))
    recorder.at_end.append(lambda: guard("modules", construction.close_span))

    def first_step(_: int) -> None:
        construction.close_span()
        construction.finished = True

    step_clock.on_first_step.append(lambda t: guard("modules", first_step, t))
    evaluation.install(module)


def _wrap_init(construction: Construction) -> Callable[..., Any]:
    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        guard("modules", construction.on_module_init)
        original(*args, **kwargs)

    return around


def install_ddp(module: ModuleType) -> None:
    """torch.nn.parallel.distributed"""
    spanned(module.DistributedDataParallel, "__init__", SPAN)


def install_fsdp(module: ModuleType) -> None:
    """torch.distributed.fsdp.fully_sharded_data_parallel"""
    spanned(module.FullyShardedDataParallel, "__init__", SPAN)


def install_fully_shard(module: ModuleType) -> None:
    """torch.distributed.fsdp._fully_shard._fully_shard"""
    spanned(module, "fully_shard", SPAN)
