"""One file per thing that is watched. A hook gets a module whose body has just run.

Each looks for what it needs and switches itself off alone, with a note, when torch has it not.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe import ENV_OFF, pace
from headway.probe.recorder import guard, recorder

# module of the user's process -> where its hook is, below this package
TABLE = {
    "torch": "steps:torch_loaded",
    "torch.autograd.grad_mode": "evaluation:install_grad_mode",
    "torch.cuda": "device:install",
    "torch.optim.optimizer": "steps:install",
    "torch.nn.modules.module": "modules:install",
    "torch.nn.parallel.distributed": "modules:install_ddp",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "modules:install_fsdp",
    "torch.distributed.fsdp._fully_shard._fully_shard": "modules:install_fully_shard",
    "torch.utils.data.dataloader": "data:install",
    "torch.serialization": "checkpoint:install",
    "torch.distributed.checkpoint.state_dict_saver": "checkpoint:install_dcp_save",
    "torch.distributed.checkpoint.state_dict_loader": "checkpoint:install_dcp_load",
    "safetensors.torch": "checkpoint:install_safetensors",
    "lightning.pytorch.trainer.trainer": "checkpoint:install_lightning",
    "pytorch_lightning.trainer.trainer": "checkpoint:install_lightning",
    "transformers.trainer": "checkpoint:install_transformers",
    "torch.distributed.distributed_c10d": "distributed:install",
    "torch.distributed.elastic.events": "distributed:install_events",
    "torch.distributed.elastic.multiprocessing.errors": "distributed:install_failures",
    "torch.multiprocessing.spawn": "distributed:install_spawn",
    "torch._dynamo.callback": "dynamo:install",
    "torch._dynamo.utils": "dynamo:install_utils",
    "torch.export": "publish:install_export",
    "torch.jit._serialization": "publish:install_jit",
    "torch._inductor": "publish:install_inductor",
    "torch.onnx": "publish:install_onnx",
}


def apply(name: str, module: ModuleType) -> None:
    """Run the hook of module `name`, if it has one."""
    where = TABLE.get(name)
    unwanted = os.environ.get(ENV_OFF, "").split(",")
    if where is not None and where.partition(":")[0] not in unwanted:
        guard(name, _apply, where, module)


def _apply(where: str, module: ModuleType) -> None:
    file, _, function = where.partition(":")
    getattr(importlib.import_module(f"headway.probe.hooks.{file}"), function)(module)


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `owner.name` by `around(original, *args, **kwargs)`; it looks like the original."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)


def tracing() -> bool:
    """Whether dynamo is reading this code for a compile: then there is nothing to note.

    torch's own function takes this one's place when torch has loaded; dynamo knows its answer
    and compiles the hook away, so that a graph is the same with and without it.
    """
    return False


def spanned(
    owner: Any, name: str, span: str, *, starts: bool = True, until_first_step: bool = False
) -> None:
    """Every outermost call of `owner.name` becomes a span; `starts`: it opens the journal."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inside(span) or (until_first_step and pace.steps):
            return original(*args, **kwargs)
        if starts:
            guard(span, recorder.start)
        opened = guard(span, enter, span, name)
        try:
            return original(*args, **kwargs)
        finally:
            guard(span, leave, span, opened)

    wrap(owner, name, around)


# Spans of one name do not nest: only the outermost call counts.
_inside: dict[tuple[str, int], int] = {}


def inside(span: str) -> bool:
    """Whether this thread is in a span of that name already."""
    return (span, recorder.thread()) in _inside


def enter(span: str, what: str, **fields: Any) -> int:
    """Open a span that calls of the same name inside it do not repeat."""
    opened = recorder.begin(span, what=what, **fields)
    _inside[span, recorder.thread()] = opened
    return opened


def leave(span: str, opened: int | None, **fields: Any) -> None:
    """Close it."""
    _inside.pop((span, recorder.thread()), None)
    if opened is not None:
        recorder.end(opened, **fields)
