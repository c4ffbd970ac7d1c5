"""Checkpoint saves and loads, by whatever API a job uses; the outermost call counts.

Files written inside a larger save are recorded as parts of it, with no time of their own, so that a
later load of any of them can be matched. A file is identified by inode, size and modification time,
which survive a rename.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic_ns
from types import ModuleType
from typing import Any

from headway.journal.file_access import file_identity
from headway.probe import step_clock
from headway.probe.hooks import device
from headway.probe.patching import enter, inside, leave, wrap
from headway.probe.recorder import guard, guard_end, recorder

SAVE = "checkpoint_save"
LOAD = "checkpoint_load"
MIN_MEMORY_SAVE_NS = 10_000_000  # a shorter save to memory is not recorded
MAX_STEPS_KEPT = 64  # saves whose step is known

_saves_in_progress = 0  # in all threads
_upload_paths: set[str | None] = set()  # targets of asynchronous saves
_saved_steps: dict[str, int] = {}  # path -> step, of the last saves of this process
# Around lookups of paths, which may not be written yet.
path_lookup: Callable[[], AbstractContextManager[None]] = nullcontext
unwritten_paths: set[str] = set()  # files that `--async-save` still has to write
_lock = threading.Lock()


def written_identity(path: str | None) -> str | None:
    """The identity of the file at a path; None if it is not written yet."""
    return None if path is None or path in unwritten_paths else file_identity(path)


def path_of(target: Any) -> str | None:
    """The path of a path, of an open file, or of a DCP reader or writer."""
    if isinstance(target, (str, os.PathLike)):
        text = os.fspath(target)
    else:
        text = getattr(target, "name", None) or getattr(target, "path", None)
        if isinstance(text, os.PathLike):
            text = os.fspath(text)
    if not isinstance(text, str):
        return None
    if "://" in text:
        return text
    with path_lookup():
        return os.path.realpath(text)


def save_wrapper(target_of: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrapper of a call that writes a checkpoint to `target_of(*args, **kwargs)`."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path = guard(what, _path, target_of, args, kwargs)
        if inside(SAVE) or _is_part_of_a_save():
            result = original(*args, **kwargs)
            guard(what, _record_part, path)
            return result
        if path is None:
            return _to_memory(original, what, *args, **kwargs)
        opened = guard(what, _begin, what, path)
        if opened is None:  # the hook is disabled
            return original(*args, **kwargs)
        error = ""
        try:
            return original(*args, **kwargs)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            guard_end(what, _end, *opened, path, error)

    return around


def _path(target_of: Callable[..., Any], args: Any, kwargs: Any) -> str | None:
    return path_of(target_of(*args, **kwargs))


def _is_part_of_a_save() -> bool:
    """Whether this is a writer thread of a save in progress, which has a span already."""
    return _saves_in_progress > 0


def _begin(what: str, path: str | None) -> tuple[int, Any, int]:
    """Open a span; return it with an event at the end of the device queue, and the time."""
    global _saves_in_progress
    recorder.start()
    step_clock.flush()  # so that the journal has the exact time of the saved step
    _remember(path)
    background = step_clock.steps > 0 and recorder.thread() != step_clock.step_thread_in_journal
    extra = {"background": True} if background else {}
    span = enter(SAVE, what, path=path, step=step_clock.steps, **extra)
    with _lock:
        _saves_in_progress += 1
    return span, guard("device", device.mark_queue), monotonic_ns()


def _end(span: int, marker: Any, start: int, path: str | None, error: str) -> None:
    global _saves_in_progress
    with _lock:
        _saves_in_progress -= 1
    fields = {"error": error} if error else {"file": written_identity(path)}
    leave(SAVE, span, **fields)
    guard("device", device.note_drain, marker, start, monotonic_ns())


def _record_part(path: str | None) -> None:
    if path is not None:
        _remember(path)
        _write_part(path, step_clock.steps)


def _write_part(path: str, step: int) -> None:
    t = monotonic_ns()
    recorder.span(SAVE, t, t, path=path, file=written_identity(path), step=step, part=True)


def _remember(path: str | None) -> None:
    if path is not None:
        _saved_steps.pop(path, None)
        _saved_steps[path] = step_clock.steps
        while len(_saved_steps) > MAX_STEPS_KEPT:
            del _saved_steps[next(iter(_saved_steps))]


def _to_memory(original: Callable[..., Any], what: str, *args: Any, **kwargs: Any) -> Any:
    """A save into a buffer: recorded only if it takes long."""
    start = monotonic_ns()
    try:
        return original(*args, **kwargs)
    finally:
        end = monotonic_ns()
        if end - start >= MIN_MEMORY_SAVE_NS:
            guard(what, _note_memory, what, start, end)


def _note_memory(what: str, start: int, end: int) -> None:
    recorder.start()
    recorder.span(SAVE, start, end, what=what, step=step_clock.steps)


def load_wrapper(target_of: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrapper of a call that reads a checkpoint from `target_of(*args, **kwargs)`."""

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if inside(LOAD) or inside(SAVE) or step_clock.is_waiting():
            return original(*args, **kwargs)  # a data loader may read files too
        path = guard(what, _path, target_of, args, kwargs)
        if path is None:
            return original(*args, **kwargs)
        guard(what, recorder.start)
        if step_clock.steps:  # some jobs read many small files in the loop
            return _in_loop(original, what, path, *args, **kwargs)
        span = guard(what, _begin_load, what, path)
        error = {}
        try:
            return original(*args, **kwargs)
        except BaseException as raised:
            error = {"error": type(raised).__name__}
            raise
        finally:
            guard_end(what, lambda: leave(LOAD, span, **error))

    return around


def _in_loop(original: Callable[..., Any], what: str, path: str, *args: Any, **kwargs: Any) -> Any:
    start = monotonic_ns()
    error = {}
    try:
        return original(*args, **kwargs)
    except BaseException as raised:
        error = {"error": type(raised).__name__}
        raise
    finally:
        end = monotonic_ns()
        # The job may roll back to its own save.
        if end - start >= MIN_MEMORY_SAVE_NS or path in _saved_steps:
            guard(what, _note_load, what, path, start, end, error)


def _note_load(what: str, path: str, start: int, end: int, error: dict[str, str]) -> None:
    step_clock.flush()  # so that the steps before it get their own line
    recorder.span(LOAD, start, end, what=what, path=path, file=written_identity(path), **error)


def _begin_load(what: str, path: str) -> int:
    return enter(LOAD, what, path=path, file=written_identity(path))


def install(serialization: ModuleType) -> None:
    """torch.serialization"""
    wrap(serialization, "save", save_wrapper(lambda obj, f, *_, **__: f, "torch.save"))
    wrap(serialization, "load", load_wrapper(lambda f, *_, **__: f, "torch.load"))


def _dcp_target(*args: Any, **kwargs: Any) -> Any:
    target = kwargs.get("checkpoint_id")
    if target is not None:
        return target
    for key in ("storage_writer", "storage_reader"):
        if kwargs.get(key) is not None:
            return kwargs[key]
    return args[1] if len(args) > 1 else None


def install_dcp_save(saver: ModuleType) -> None:
    """torch.distributed.checkpoint.state_dict_saver"""
    around_save, around_async_save = (
        save_wrapper(_dcp_target, "dcp.save"),
        save_wrapper(_dcp_target, "dcp.async_save"),
    )

    def save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if guard("dcp.save", _path, _dcp_target, args, kwargs) in _upload_paths:
            return original(*args, **kwargs)  # the thread of async_save
        return around_save(original, *args, **kwargs)

    def async_save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        path = guard("dcp.async_save", _path, _dcp_target, args, kwargs)
        _upload_paths.add(path)
        try:
            result = around_async_save(original, *args, **kwargs)
        except BaseException:
            _upload_paths.discard(path)
            raise
        guard("dcp.async_save", _follow, result, path, step_clock.steps, monotonic_ns())
        return result

    wrap(saver, "save", save)
    wrap(saver, "async_save", async_save)


def _follow(result: Any, path: str | None, step: int, start: int) -> None:
    """Record the upload in the background; the save is durable when its future is done."""
    future = getattr(result, "upload_completion", result)
    recorder.emit("saving", path=path, step=step)

    def done(finished: Any) -> None:
        _upload_paths.discard(path)
        failed = finished.exception() is not None
        extra = {"error": "upload"} if failed else {"file": written_identity(path)}
        recorder.span(SAVE, start, monotonic_ns(), path=path, step=step, background=True, **extra)

    future.add_done_callback(lambda finished: guard("dcp.async_save", done, finished))


def install_dcp_load(loader: ModuleType) -> None:
    """torch.distributed.checkpoint.state_dict_loader"""
    wrap(loader, "load", load_wrapper(_dcp_target, "dcp.load"))


def install_safetensors(safetensors: ModuleType) -> None:
    """safetensors.torch"""
    wrap(
        safetensors,
        "save_file",
        save_wrapper(lambda t, filename, *_, **__: filename, "safetensors"),
    )
    wrap(safetensors, "load_file", load_wrapper(lambda filename, *_, **__: filename, "safetensors"))


def install_lightning(trainer: ModuleType) -> None:
    """Lightning's Trainer: the save includes gathering the state."""
    target = lambda self, filepath, *_, **__: filepath  # noqa: E731
    wrap(trainer.Trainer, "save_checkpoint", save_wrapper(target, "lightning"))


def install_transformers(trainer: ModuleType) -> None:
    """transformers.Trainer"""
    target = lambda self, *_, **__: self.args.output_dir  # noqa: E731
    wrap(trainer.Trainer, "_save_checkpoint", save_wrapper(target, "transformers"))


def install_pyarrow(fs: ModuleType) -> None:
    """pyarrow.fs: Ray Train saves to a local folder and copies that to its storage."""

    def copy_files(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guard("pyarrow", _note_copies, args, kwargs)
        return result

    wrap(fs, "copy_files", copy_files)


def _note_copies(args: Any, kwargs: Any) -> None:
    """Record the copies of checkpoints that this process has saved."""
    source_path = _path(lambda source, *_, **__: source, args, kwargs)
    destination_path = _path(lambda source, destination, *_, **__: destination, args, kwargs)
    if source_path is None or destination_path is None:
        return
    for path, step in list(_saved_steps.items()):
        copy = destination_path + path[len(source_path) :]
        if (path == source_path or path.startswith(source_path + os.sep)) and os.path.exists(copy):
            _write_part(copy, step)
