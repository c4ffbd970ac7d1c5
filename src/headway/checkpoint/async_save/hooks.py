"""Import hooks that replace the save functions of torch and of trainers, and what waits for them.

Until the first save no other module of this package is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headway.probe import ENV_FOLDER
from headway.probe.hooks.checkpoint import save_wrapper
from headway.probe.patching import wrap

COMMUNICATION = (
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
    _require(serialization, "_save", "_open_zipfile_writer", "_serialization_tls")
    _require(serialization.torch._C, "_len_torch_dispatch_stack")

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.async_save import file_guard, torch_save

        file_guard.install_guard()
        return torch_save.save(serialization, original, *args, **kwargs)

    wrap(serialization, "save", save)
    remove_unfinished()


def install_dcp(saver: ModuleType) -> None:
    """torch.distributed.checkpoint.state_dict_saver"""
    _require(saver, "Metadata", "_stateful_to_state_dict")
    _require(sys.modules[STAGER], "StateDictStager")

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.async_save import dcp_save, file_guard

        file_guard.install_guard()
        return dcp_save.save(saver, original, *args, **kwargs)

    wrap(saver, "save", save)


def _require(module: ModuleType, *names: str) -> None:
    """Raise AttributeError if torch lacks something that is needed."""
    for name in names:
        getattr(module, name)


def install_distributed(c10d: ModuleType) -> None:
    """torch.distributed.distributed_c10d: other ranks may rely on what this rank has saved."""
    for name in COMMUNICATION:
        wrap(c10d, name, _after_writes)

    def destroy(original: Callable[..., Any], group: Any = None) -> Any:
        dcp = sys.modules.get("headway.checkpoint.async_save.dcp_save")
        if dcp is not None and group in (None, c10d.GroupMember.WORLD):
            dcp.forget_group()
        return _after_writes(original, group)

    wrap(c10d, "destroy_process_group", destroy)


def _after_writes(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    queue = sys.modules.get("headway.checkpoint.async_save.background")
    if queue is not None and not queue.write_queue.in_save():
        queue.write_queue.wait(getattr(original, "__name__", "another rank"))
    return original(*args, **kwargs)


def install_lightning(cloud_io: ModuleType) -> None:
    """Lightning saves into memory and writes that; save to the file directly instead."""

    def atomic_save(original: Callable[..., Any], checkpoint: Any, filepath: Any) -> Any:
        from headway.checkpoint.async_save import file_guard, torch_save

        def plain(*_: Any) -> Any:  # Lightning's own way never leaves a partial file
            return original(checkpoint, filepath)

        def in_background(*args: Any) -> Any:
            return torch_save.save(cloud_io.torch.serialization, plain, *args)

        file_guard.install_guard()
        if isinstance(filepath, (str, os.PathLike)) and "://" not in os.fspath(filepath):
            return measured(in_background, checkpoint, filepath)
        return torch_save.save_synchronously(torch_save.URL, filepath, plain)

    measured = save_wrapper(lambda checkpoint, filepath: filepath, "torch.save")
    wrap(cloud_io, "_atomic_save", atomic_save)


def install_pyarrow(fs: ModuleType) -> None:
    """It copies files without Python: Ray Train persists checkpoints of workers this way."""
    wrap(fs, "copy_files", _after_writes)


def install_trainer_state(callback: ModuleType) -> None:
    """transformers.trainer_callback"""

    def save_to_json(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.async_save import checkpoint_folders

        return checkpoint_folders.write_last_file(original, *args, **kwargs)

    wrap(callback.TrainerState, "save_to_json", save_to_json)


def install_last_checkpoint(utils: ModuleType) -> None:
    """transformers.trainer_utils"""

    def get_last_checkpoint(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.async_save import checkpoint_folders

        return checkpoint_folders.last_complete(original, *args, **kwargs)

    wrap(utils, "get_last_checkpoint", get_last_checkpoint)
    if hasattr(utils, "sort_checkpoints"):  # sorted by the times of their folders
        wrap(utils, "sort_checkpoints", _after_writes)


def install_trainer(trainer: ModuleType) -> None:
    """transformers.trainer"""

    def folder(self: Any, model: Any, trial: Any = None, *_: Any, **__: Any) -> str:
        name = f"{trainer.PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        return os.path.join(self._get_output_dir(trial=trial), name)

    _require(trainer.Trainer, "_get_output_dir")
    _require(trainer, "PREFIX_CHECKPOINT_DIR")
    wrap(trainer.Trainer, "_save_checkpoint", _as_checkpoint_folder(folder))
    if hasattr(trainer.Trainer, "_sorted_checkpoints"):
        wrap(trainer.Trainer, "_sorted_checkpoints", _after_writes)


def install_accelerate(accelerator: ModuleType) -> None:
    """accelerate.accelerator"""

    def folder(self: Any, output_dir: Any = None, *_: Any, **__: Any) -> Any:
        if not self.project_configuration.automatic_checkpoint_naming:
            return output_dir
        return os.path.join(self.project_dir, "checkpoints", f"checkpoint_{self.save_iteration}")

    _require(accelerator.Accelerator, "project_dir", "save_iteration")
    wrap(accelerator.Accelerator, "save_state", _as_checkpoint_folder(folder))


def install_lightning_trainer(trainer: ModuleType) -> None:
    """lightning.pytorch.trainer.trainer: strategies that shard save a folder."""
    wrap(
        trainer.Trainer,
        "save_checkpoint",
        _as_checkpoint_folder(lambda self, filepath, *_, **__: filepath),
    )


def _as_checkpoint_folder(folder_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a framework's call that saves a whole checkpoint into one folder."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from headway.checkpoint.async_save import checkpoint_folders, file_guard

        file_guard.install_guard()
        return checkpoint_folders.save_folder(folder_of, original, *args, **kwargs)

    return around


def remove_unfinished() -> None:
    """Remove incomplete saves of an earlier attempt, where torchrun restarts its workers itself."""
    from headway.probe import unfinished_saves

    journal = os.environ.get(ENV_FOLDER)
    if journal:
        unfinished_saves.remove_dead_saves(journal, unfinished_saves.current_attempt())
