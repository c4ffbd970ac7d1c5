"""Where saves, and what waits for them, are taken over.

Until the first save nothing of this room is loaded but this file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe.hooks import wrap

TALKS = (
    "all_gather_object",
    "barrier",
    "broadcast_object_list",
    "gather_object",
    "monitored_barrier",
    "scatter_object_list",
)
STAGER = "torch.distributed.checkpoint._state_dict_stager"


def install(serialization: ModuleType) -> None:
    """torch.serialization"""
    _need(serialization, "_save", "_open_zipfile_writer", "_serialization_tls")
    _need(serialization.torch._C, "_len_torch_dispatch_stack")

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.behind import save, watch

        watch.arm()
        return save.save(serialization, original, *args, **kwargs)

    wrap(serialization, "save", save)


def install_dcp(saver: ModuleType) -> None:
    """torch.distributed.checkpoint.state_dict_saver"""
    _need(saver, "Metadata", "_stateful_to_state_dict")
    _need(sys.modules[STAGER], "StateDictStager")

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.behind import dcp, watch

        watch.arm()
        return dcp.save(saver, original, *args, **kwargs)

    wrap(saver, "save", save)


def _need(module: ModuleType, *names: str) -> None:
    """Raises where torch has not what this is built on."""
    for name in names:
        getattr(module, name)


def install_distributed(c10d: ModuleType) -> None:
    """torch.distributed.distributed_c10d: other ranks may count on what this one has saved."""
    for name in TALKS:
        wrap(c10d, name, _waiting)

    def destroy(original: Callable[..., Any], group: Any = None) -> Any:
        dcp = sys.modules.get("headway.checkpoint.behind.dcp")
        if dcp is not None and group in (None, c10d.GroupMember.WORLD):
            dcp.forget_group()
        return _waiting(original, group)

    wrap(c10d, "destroy_process_group", destroy)


def _waiting(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    queue = sys.modules.get("headway.checkpoint.behind.queue")
    if queue is not None and not queue.queued.busy():
        queue.queued.wait(getattr(original, "__name__", "another rank"))
    return original(*args, **kwargs)


def install_lightning(cloud_io: ModuleType) -> None:
    """Lightning saves into memory, and writes that; here it saves to the file."""

    def atomic_save(original: Callable[..., Any], checkpoint: Any, filepath: Any) -> Any:
        if isinstance(filepath, (str, os.PathLike)) and "://" not in os.fspath(filepath):
            return cloud_io.torch.save(checkpoint, filepath)
        from headway.checkpoint.behind import save, watch

        watch.arm()
        return save.plain("a URL", filepath, original, checkpoint, filepath)

    wrap(cloud_io, "_atomic_save", atomic_save)


def install_pyarrow(fs: ModuleType) -> None:
    """It copies files by itself, unseen by Python: so Ray Train keeps what a worker has saved."""
    wrap(fs, "copy_files", _waiting)


def install_trainer_state(callback: ModuleType) -> None:
    """transformers.trainer_callback"""

    def save_to_json(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.behind import pieces

        return pieces.write_last(original, *args, **kwargs)

    wrap(callback.TrainerState, "save_to_json", save_to_json)


def install_last_checkpoint(utils: ModuleType) -> None:
    """transformers.trainer_utils"""

    def get_last_checkpoint(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.behind import pieces

        return pieces.last_whole(original, *args, **kwargs)

    wrap(utils, "get_last_checkpoint", get_last_checkpoint)
