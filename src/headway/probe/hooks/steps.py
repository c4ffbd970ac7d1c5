"""Every optimizer step, of every optimizer, through torch's own global hook."""

from __future__ import annotations

from types import ModuleType

from headway.probe import hooks, imports, pace
from headway.probe.hooks import spanned
from headway.probe.recorder import recorder


def torch_loaded(torch: ModuleType) -> None:
    """`import torch` is done."""
    pace.grad_enabled = torch.is_grad_enabled
    hooks.tracing = torch.compiler.is_dynamo_compiling
    spanned(torch, "compile", "compile_import")  # the call compiles nothing yet, but imports much
    if recorder.rank is not None:
        recorder.start()


def install(optimizer: ModuleType) -> None:
    """torch.optim.optimizer"""
    pace.optimizer_stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer.register_optimizer_step_post_hook(pace.optimizer_stepped)
    pace.on_first_step.append(lambda t: imports.stop_timing())
