"""Model construction: the first nn.Module to the last parameter, moves to a device, wraps.

All of it is taken out again at the first step: from then on models are not built but used.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.probe import pace
from headway.probe.hooks import evaluation, inside, spanned
from headway.probe.recorder import guard, recorder

SPAN = "train_module_creation"


class Construction:
    """One stretch of building: open from the first module, closed at the last parameter."""

    def __init__(self) -> None:
        self.span: int | None = None
        self.last = 0
        self.settling = False

    def module_begun(self) -> None:
        """A module's `__init__` has been entered."""
        if self.span is not None or inside(SPAN) or inside("compile"):
            return
        if recorder.thread() == 0:
            recorder.start()
            self.span = recorder.begin(SPAN, what="nn.Module")
            self.last = monotonic_ns()

    def part_made(self, *_: Any) -> None:
        """A parameter, a buffer or a child module has been registered."""
        self.last = monotonic_ns()

    def settle(self) -> None:
        """Something else begins: what was built, was built when its last part was made."""
        if self.span is not None and recorder.thread() == 0:
            span, self.span = self.span, None
            recorder.end(span, self.last)


def install(module: ModuleType) -> None:
    """torch.nn.modules.module"""
    construction = Construction()
    undo: list[Callable[[], Any]] = [
        module.register_module_parameter_registration_hook(construction.part_made).remove,
        module.register_module_buffer_registration_hook(construction.part_made).remove,
        module.register_module_module_registration_hook(construction.part_made).remove,
        _watch_init(module.Module, construction),
    ]
    for name in ("to", "cuda"):
        original = getattr(module.Module, name)
        spanned(module.Module, name, SPAN)
        undo.append(_putting_back(module.Module, name, original))
    recorder.before_span.append(construction.settle)
    recorder.at_end.append(construction.settle)

    def first_step(_: int) -> None:
        construction.settle()
        recorder.before_span.remove(construction.settle)
        for take_out in undo:
            take_out()

    pace.on_first_step.append(lambda t: guard("modules", first_step, t))
    evaluation.install(module)


def _watch_init(owner: Any, construction: Construction) -> Callable[[], Any]:
    original = owner.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        guard("modules", construction.module_begun)
        original(self, *args, **kwargs)

    owner.__init__ = __init__
    return _putting_back(owner, "__init__", original)


def _putting_back(owner: Any, name: str, original: Any) -> Callable[[], Any]:
    ours = getattr(owner, name)

    def put_back() -> None:
        if getattr(owner, name) is ours:  # somebody else may have wrapped it since
            setattr(owner, name, original)

    return put_back


def install_ddp(module: ModuleType) -> None:
    """torch.nn.parallel.distributed"""
    spanned(module.DistributedDataParallel, "__init__", SPAN)


def install_fsdp(module: ModuleType) -> None:
    """torch.distributed.fsdp.fully_sharded_data_parallel"""
    spanned(module.FullyShardedDataParallel, "__init__", SPAN)


def install_fully_shard(module: ModuleType) -> None:
    """torch.distributed.fsdp._fully_shard._fully_shard"""
    spanned(module, "fully_shard", SPAN)
