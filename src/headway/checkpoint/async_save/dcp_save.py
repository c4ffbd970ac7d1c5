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
    """Copies of a state, in memory that is used again."""

    def __init__(self) -> None:
        self._stagers: list[tuple[Any, BackgroundSave | None]] = []

    def stage(self, state: Any) -> tuple[Any, Any]:
        """A copy on the CPU, and the memory it is in."""
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
        """It is free again after that job."""
        self._stagers.append((stager, job))


copier = StateCopier()
_group: tuple[Any, Any] | None = None  # the job's group of all ranks, and ours


def save(saver: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of torch.distributed.checkpoint.save."""
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
        write_queue.raise_failed()  # of an earlier one; this one is on its way
        return result
    return save_synchronously(reason, target, original, *args, **kwargs)


def _unsupported_reason(args: Any, kwargs: Any) -> CannotStage | None:
    """Why not, by what is the same on all ranks."""
    one_state = len(args) + ("state_dict" in kwargs) == 1
    if not one_state or kwargs.keys() - KNOWN_ARGUMENTS:
        return CannotStage("old or unknown arguments", code="arguments-not-supported")
    if kwargs.get("planner") is not None:
        return CannotStage("it has a planner of its own", code="own-planner")
    if kwargs.get("process_group") is not None:
        return CannotStage("it has a process group of its own", code="own-process-group")
    if kwargs.get("use_collectives") is False:
        return CannotStage("use_collectives is off", code="collectives-off")
    return None


def _is_distributed(kwargs: Any) -> bool:
    import torch.distributed as dist

    single = kwargs.get("no_dist") or not dist.is_available() or not dist.is_initialized()
    return not single


def _agree(reason: CannotStage | None) -> CannotStage | None:
    """What one rank cannot do, none does."""
    import torch.distributed as dist

    if not dist.is_gloo_available():
        reason = reason or CannotStage("there is no gloo", code="gloo-missing")
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, reason)
    for rank, other in enumerate(answers):
        if other is not None:
            return CannotStage(f"rank {rank}: {other}", code=other.code)
    return None


def _copy_state(
    saver: Any, args: Any, kwargs: Any, nested: bool, distributed: bool
) -> tuple[CannotStage | None, Any, Any]:
    """Why not, else a copy of the state and its memory."""
    if nested or write_queue.closed:
        return NESTED if nested else ENDING, None, None
    try:
        path = _target_folder(kwargs)
        if os.path.exists(os.path.join(path, ".metadata")):
            raise CannotStage("there is a checkpoint in that folder", code="checkpoint-in-folder")
        state = saver._stateful_to_state_dict(args[0] if args else kwargs["state_dict"])
        _check(state)
        return None, *copier.stage(state)
    except CannotStage as error:
        return error.with_traceback(None), None, None  # whose frames hold the state
    except Exception as error:
        if raised_by_user(error) and not distributed:  # other ranks wait for this one's answer
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
        raise CannotStage("the target is no folder of this machine", code="not-a-local-folder")
    return os.path.realpath(text)


def _check(value: Any) -> None:
    """Raise where something is in the state whose copy might not be the same."""
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
    for kind in ("conj", "neg", "quantized", "nested"):  # their memory is not all that they are
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
        arguments["checkpoint_id"] = path  # wherever the job is by then
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
    """Here, as the writer could wait for the lock of one whose import waits for the writer."""
    with contextlib.suppress(Exception):  # fsspec need not be there
        import_module("torch.distributed.checkpoint._fsspec_filesystem")


def _own_group() -> Any:
    """Of all ranks, on the CPU, used by the writers' threads alone."""
    global _group
    import torch.distributed as dist

    world_group = dist.distributed_c10d._get_default_group()
    if _group is None or _group[0] is not world_group:
        _group = world_group, dist.new_group(backend="gloo", group_desc="headway_async_save")
    return _group[1]


def forget_group() -> None:
    """Process groups go; before that, all is written."""
    global _group
    write_queue.wait("destroy_process_group")
    _group = None


def _deferred_metadata(kind: type, job: BackgroundSave) -> Any:
    """The metadata that torch returns; whoever looks at it waits for the save."""

    class Later(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__(self, "__dict__")
            if not name.startswith("__") and not own:
                job.wait()
                write_queue.raise_failed(job.path)
                if job.error:  # which somebody else was told of
                    raise describe_failures([job])
                own.update(vars(job.result))
            return object.__getattribute__(self, name)

    return object.__new__(Later)
