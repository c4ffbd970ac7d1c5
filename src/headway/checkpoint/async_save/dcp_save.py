"""Asynchronous `torch.distributed.checkpoint.save`: copy the state, and save it in the background.

torch's own save runs in the writing thread, with a process group of its own where there are several
ranks. All ranks first agree whether each of them can.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from importlib import import_module
from time import monotonic_ns
from typing import Any

from headway.checkpoint.async_save.background import BackgroundSave, describe_failures, write_queue
from headway.checkpoint.async_save.torch_save import (
    DEVICES,
    ENDING,
    NESTED,
    CannotStage,
    copy_failed,
    no_memory,
    save_synchronously,
)
from headway.checkpoint.engine.buffers import fits_in_memory
from headway.probe import step_clock
from headway.probe.recorder import raised_by_user
from headway.storage import atomic_file

KNOWN_ARGUMENTS = {
    "checkpoint_id",
    "storage_writer",
    "planner",
    "process_group",
    "no_dist",
    "use_collectives",
}
SCALARS = (bool, bytes, complex, float, int, str, type(None))
STAGERS = 2  # one is written while the other is filled


class StateCopier:
    """Copies states into reused memory."""

    def __init__(self) -> None:
        self._stagers: list[tuple[Any, BackgroundSave | None]] = []

    def stage(self, state: Any) -> tuple[Any, Any]:
        """A copy on the CPU, and its stager."""
        import torch

        stager = self._free(_size(state))
        with torch.inference_mode(False):
            return stager.stage(state), stager

    def _free(self, size: int) -> Any:
        from torch.distributed.checkpoint._state_dict_stager import StateDictStager

        free = [at for at, (_, job) in enumerate(self._stagers) if job not in write_queue.pending]
        if not free and len(self._stagers) < STAGERS and fits_in_memory(size):
            return StateDictStager()
        if not self._stagers:
            raise no_memory(size)
        stager, job = self._stagers.pop(free[0] if free else 0)
        if job is not None and not free:
            write_queue.wait_for(job, "memory")
        return stager

    def keep(self, stager: Any, job: BackgroundSave | None) -> None:
        """Reuse the stager after that save."""
        self._stagers.append((stager, job))


copier = StateCopier()
_group: tuple[Any, Any] | None = None  # the default process group, and the gloo group for it


def save(saver: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replacement of torch.distributed.checkpoint.save."""
    if write_queue.writes():
        return original(*args, **kwargs)
    target = kwargs.get("checkpoint_id") or kwargs.get("storage_writer")
    nested = write_queue.in_save()
    with write_queue.internal():
        start = monotonic_ns()
        reason = _unsupported_reason(args, kwargs)
        distributed = reason is None and _is_distributed(kwargs)
        copy = stager = None
        if reason is None:
            reason, copy, stager = _copy_state(saver, args, kwargs, nested, distributed)
        if distributed:
            reason = _agree(reason)
        result = None
        if reason is None:
            result = _save_in_background(saver, original, copy, stager, distributed, start, kwargs)
        elif stager is not None:
            copier.keep(stager, None)
    if reason is None:
        write_queue.raise_failed()  # errors of earlier saves; this one is queued
        return result
    return save_synchronously(reason, target, original, *args, **kwargs)


def _unsupported_reason(args: Any, kwargs: Any) -> CannotStage | None:
    """Why not, by arguments that are the same on all ranks."""
    one_state = len(args) + ("state_dict" in kwargs) == 1
    if not one_state or kwargs.keys() - KNOWN_ARGUMENTS:
        return CannotStage("deprecated or unknown arguments", code="arguments-not-supported")
    if kwargs.get("planner") is not None:
        return CannotStage("it has a custom planner", code="own-planner")
    if kwargs.get("process_group") is not None:
        return CannotStage("it has a custom process group", code="own-process-group")
    if kwargs.get("use_collectives") is False:
        return CannotStage("use_collectives is off", code="collectives-off")
    return None


def _is_distributed(kwargs: Any) -> bool:
    import torch.distributed as dist

    single = kwargs.get("no_dist") or not dist.is_available() or not dist.is_initialized()
    return not single


def _agree(reason: CannotStage | None) -> CannotStage | None:
    """Save in the background only if all ranks can."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        reason = reason or CannotStage("gloo is not available", code="gloo-missing")
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, reason)
    for rank, other in enumerate(answers):
        if other is not None:
            return CannotStage(f"rank {rank}: {other}", code=other.code)
    return None


def _copy_state(
    saver: Any, args: Any, kwargs: Any, nested: bool, distributed: bool
) -> tuple[CannotStage | None, Any, Any]:
    """A copy of the state and its stager, or the reason why not."""
    if nested or write_queue.closed:
        return NESTED if nested else ENDING, None, None
    try:
        path = _target_folder(kwargs)
        if os.path.exists(os.path.join(path, ".metadata")):
            raise CannotStage(
                "the folder already contains a checkpoint", code="checkpoint-in-folder"
            )
        state = saver._stateful_to_state_dict(args[0] if args else kwargs["state_dict"])
        _check(state)
        return None, *copier.stage(state)
    except CannotStage as error:
        return error.with_traceback(None), None, None  # its frames reference the state
    except Exception as error:
        if raised_by_user(error) and not distributed:  # the other ranks wait for this rank
            raise
        return copy_failed(error), None, None


def _target_folder(kwargs: Any) -> str:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    target, writer = kwargs.get("checkpoint_id"), kwargs.get("storage_writer")
    if writer is not None and type(writer) is not FileSystemWriter:
        raise CannotStage(f"it is written by {type(writer).__name__}", code="own-storage-writer")
    if target is None and writer is not None:
        target = writer.path
    text = os.fspath(target) if isinstance(target, (str, os.PathLike)) else None
    if not isinstance(text, str) or "://" in text:
        raise CannotStage("the target is not a local folder", code="not-a-local-folder")
    return os.path.realpath(text)


def _check(value: Any) -> None:
    """Raise if the copy of a value might differ from it."""
    import torch

    if isinstance(value, dict):
        _check_all((*value.keys(), *value.values()))
    elif type(value) in (list, tuple, set):
        _check_all(value)
    elif isinstance(value, torch.Tensor):
        _check_tensor(value)
    elif type(value) not in (*SCALARS, torch.dtype, torch.device, torch.Size):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CannotStage(f"{kind} is in the state", code="type-not-supported", type=kind)


def _check_all(values: Iterable[Any]) -> None:
    for value in values:
        _check(value)


def _check_tensor(tensor: Any) -> None:
    import torch

    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if kind.startswith("torch.distributed.tensor.") and hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise CannotStage(f"{kind} is in the state", code="type-not-supported", type=kind)
    if tensor.layout != torch.strided or tensor.device.type not in DEVICES:
        description = f"a {tensor.layout} tensor on {tensor.device.type}"
        raise CannotStage(f"{description} is in the state", code="tensor-not-supported")
    # their memory does not represent the values alone
    for kind in ("conj", "neg", "quantized", "nested"):
        value = getattr(tensor, f"is_{kind}")
        if value() if callable(value) else value:
            raise CannotStage(
                f"a tensor with is_{kind} is in the state", code="tensor-not-supported"
            )


def _size(state: Any) -> int:
    import torch

    if isinstance(state, dict):
        return sum(map(_size, state.values()))
    if isinstance(state, (list, tuple, set)):
        return sum(map(_size, state))
    if isinstance(state, torch.Tensor):
        return int(getattr(state, "_local_tensor", state).untyped_storage().nbytes())
    return 0


def _save_in_background(
    saver: Any, original: Any, copy: Any, stager: Any, distributed: bool, start: int, kwargs: Any
) -> Any:
    _import_fsspec_filesystem()
    path = _target_folder(kwargs)
    arguments = {k: v for k, v in kwargs.items() if k not in ("state_dict", "process_group")}
    if not os.path.isabs(kwargs.get("checkpoint_id") or kwargs["storage_writer"].path):
        arguments["checkpoint_id"] = path  # the working directory may have changed by then
    if distributed:
        arguments["process_group"] = _own_group()

    def write() -> Any:
        result = original(copy, **arguments)
        for folder in (path, os.path.dirname(path)):
            atomic_file.sync(folder)
        return result

    blocked_ns = monotonic_ns() - start
    job = BackgroundSave(path, "dcp.save", _size(copy), write, step_clock.steps, blocked_ns)
    copier.keep(stager, job)
    write_queue.submit(job)
    return _deferred_metadata(saver.Metadata, job)


def _import_fsspec_filesystem() -> None:
    """Import it now: a later import could deadlock with an import that waits for the writer."""
    with contextlib.suppress(Exception):  # fsspec is optional
        import_module("torch.distributed.checkpoint._fsspec_filesystem")


def _own_group() -> Any:
    """A CPU group of all ranks, used only by the writing threads."""
    global _group
    import torch.distributed as dist

    world_group = dist.distributed_c10d._get_default_group()
    if _group is None or _group[0] is not world_group:
        _group = world_group, dist.new_group(backend="gloo", group_desc="headway_async_save")
    return _group[1]


def forget_group() -> None:
    """Before process groups are destroyed, wait until everything is written."""
    global _group
    write_queue.wait("destroy_process_group")
    _group = None


def _deferred_metadata(kind: type, job: BackgroundSave) -> Any:
    """The metadata that torch returns; any access waits for the save."""

    class Later(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__(self, "__dict__")
            if not name.startswith("__") and not own:
                job.wait()
                write_queue.raise_failed(job.path)
                if job.error:  # already reported elsewhere
                    raise describe_failures([job])
                own.update(vars(job.result))
            return object.__getattribute__(self, name)

    return object.__new__(Later)
