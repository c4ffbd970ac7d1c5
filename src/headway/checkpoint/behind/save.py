"""torch.save to a path: an image now, the file behind the training."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.checkpoint.behind import aside
from headway.checkpoint.behind.image import CannotStage, StorageCopy, pickle_records
from headway.checkpoint.behind.queue import HOOK, BackgroundSave, write_queue
from headway.probe import pace
from headway.probe.recorder import guard, raised_by_user, recorder

Original = Callable[..., Any]

OPEN_FILE = CannotStage("an open file", code="open-file")
URL = CannotStage("a URL", code="url")
NESTED = CannotStage("a save within a save", code="nested-save")
ENDING = CannotStage("the process ends", code="process-ends")


def no_memory(size: int) -> CannotStage:
    """Nor will there be."""
    return CannotStage(
        f"there is no memory for a copy of {size:,} bytes", code="no-memory", size=size
    )


def copy_failed(error: Exception) -> CannotStage:
    """The plain call raises it too, if it is not ours."""
    return CannotStage(f"{type(error).__name__}: {error}", code="copy-failed")


def save(serialization: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """In place of torch.save."""
    if write_queue.writes():
        return original(*args, **kwargs)
    told = _arguments(args, kwargs)
    if told is None or isinstance(told["f"], (bytes, int)) or _is_in_memory(told["f"]):
        return original(*args, **kwargs)
    if not isinstance(told["f"], (str, os.PathLike)):
        return save_synchronously(OPEN_FILE, told["f"], original, *args, **kwargs)
    if write_queue.busy():  # a signal came while we were at work
        return save_synchronously(NESTED, told["f"], original, *args, **kwargs)
    with write_queue.at_work():
        why = _unsupported_reason(told) or _save_in_background(serialization, **told)
    if why is not None:
        return save_synchronously(why, told["f"], original, *args, **kwargs)
    write_queue.raise_failed()  # of an earlier one; this one is on its way
    return None


def save_synchronously(
    why: CannotStage, target: Any, original: Original, *args: Any, **kwargs: Any
) -> Any:
    """The call as it is without us, after all that came before it; counted."""
    guard(HOOK, _note_synchronous, why, target)
    write_queue.wait("a plain save")
    result = original(*args, **kwargs)
    write_queue.raise_failed()
    return result


def _note_synchronous(why: CannotStage, target: Any) -> None:
    from headway.probe.hooks.checkpoint import path_of

    recorder.start()
    recorder.emit("behind", path=path_of(target), why=str(why)[:200], code=why.code)


def _arguments(args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Those of torch.save; None where torch is to say what is wrong with them."""
    try:
        return _bind_arguments(*args, **kwargs)
    except TypeError:
        return None


def _bind_arguments(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> dict[str, Any]:
    return {
        "obj": obj,
        "f": f,
        "module": pickle_module,
        "protocol": pickle_protocol,
        "zipped": _use_new_zipfile_serialization,
        "no_byteorder": _disable_byteorder_record,
    }


def _is_in_memory(target: Any) -> bool:
    """A buffer is no file: nothing is won, and nothing is to be counted."""
    return not isinstance(target, os.PathLike) and not isinstance(
        getattr(target, "name", target), str
    )


def _unsupported_reason(told: dict[str, Any]) -> CannotStage | None:
    if write_queue.closed:
        return ENDING
    if not isinstance(os.fspath(told["f"]), str):
        return CannotStage("the path is not text", code="path-not-text")
    if told["module"] is not pickle:
        name = getattr(told["module"], "__name__", told["module"])
        return CannotStage(f"pickle_module is {name}", code="pickle-module-not-supported")
    if not told["zipped"]:
        return CannotStage("the old format is asked for", code="format-not-supported")
    if _dispatch_mode_on():
        return CannotStage("a torch dispatch mode is on", code="dispatch-mode-on")
    return aside.rename_unsafe_reason(_real_path(told["f"]))


def _dispatch_mode_on() -> bool:
    import torch

    return bool(torch._C._len_torch_dispatch_stack())


def _real_path(target: Any) -> str:
    return str(os.path.realpath(os.fspath(target)))


def _save_in_background(
    serialization: Any, obj: object, f: Any, protocol: int, no_byteorder: bool, **_: Any
) -> CannotStage | None:
    """Take the image and queue it; else why not, and nothing has happened."""
    start = monotonic_ns()
    path = _real_path(f)
    beside, image, job = None, None, None
    try:
        beside = aside.AtomicFile(path)
        image = _copy_storages(pickle_records(serialization, obj, protocol, no_byteorder))
        opened = serialization._open_zipfile_writer(beside.path)
        write = _write_function(beside, image, opened)
        size = sum(size for _, _, size in image.kept)
        job = BackgroundSave(path, "torch.save", size, write, pace.steps, monotonic_ns() - start)
        write_queue.submit(job)
    except BaseException as error:
        if job not in write_queue.pending:
            _discard(beside, image)
        if isinstance(error, CannotStage):
            return error.with_traceback(None)  # whose frames hold the state
        if not isinstance(error, Exception) or raised_by_user(error):
            raise
        return copy_failed(error)
    if write_queue.pending[:1] != [job]:
        guard(HOOK, image.drain_ahead)
    return None


def _write_function(
    beside: aside.AtomicFile, image: StorageCopy, opened: Any
) -> Callable[[], None]:
    def write() -> None:
        try:
            image.drain()
            with opened as zipped:
                for name, data, size in image.kept:
                    zipped.write_record(name, data, size)
            beside.commit()
        finally:
            _discard(beside, image)
        aside.remove_abandoned(beside.parent)

    return write


def _discard(beside: aside.AtomicFile | None, image: StorageCopy | None) -> None:
    if beside is not None:
        beside.drop()
    if image is not None:
        image.free(write_queue.pool)


def _copy_storages(records: Any) -> StorageCopy:
    """In memory that is free, or becomes free when what is queued is written."""
    while True:
        waiting = list(write_queue.pending)
        piece = write_queue.pool.take(records.nbytes)
        if piece is not None:
            return StorageCopy(records, piece)
        if not waiting:
            raise no_memory(records.nbytes)
        write_queue.wait_for(waiting[0], "memory")
