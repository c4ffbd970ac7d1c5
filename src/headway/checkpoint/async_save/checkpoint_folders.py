"""Checkpoints of several files, as trainers write them: complete, or not resumed from.

What a killed process left of one is removed before the next attempt (probe/unfinished_saves.py).
"""

from __future__ import annotations

import copy
import os
import re
import threading
import time
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from headway.checkpoint.async_save.background import (
    BackgroundSave,
    CheckpointFolder,
    is_below,
    write_queue,
)
from headway.journal.writer import now, process_begin
from headway.probe import import_hook, step_clock, unfinished_saves
from headway.probe.recorder import guard, recorder
from headway.storage import atomic_file

HOOK = "folders of checkpoints"
_saved: set[str] = set()  # folders that this process has already saved


def save_folder(
    folder_of: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Wrap a framework's call that saves everything into one folder."""
    folder = guard(HOOK, _begin_folder, folder_of, args, kwargs)
    if folder is None:
        return original(*args, **kwargs)
    write_queue.folder = folder
    try:
        result = original(*args, **kwargs)
    except BaseException:
        folder.failed = True
        raise
    finally:
        folder.thread = write_queue.folder = None
        _finish_when_written(folder)
    _saved.add(folder.path)
    return result


def _begin_folder(folder_of: Callable[..., Any], args: Any, kwargs: Any) -> CheckpointFolder | None:
    """The folder that rank 0 saves; None for other ranks, and inside another save."""
    if recorder.rank or write_queue.folder is not None or write_queue.in_save():
        return None
    with write_queue.internal():
        target = folder_of(*args, **kwargs)
        if not isinstance(target, (str, os.PathLike)) or "://" in os.fspath(target):
            return None
        path = os.path.realpath(target)
        existed = path in _saved or unfinished_saves.existed_before(path, _process_begin())
        return CheckpointFolder(path, unfinished_saves.begin_save(path, existed=existed))


def _process_begin() -> float:
    """Wall-clock start of this process; for a forked process, when it was first needed."""
    return time.time() - (now() - max(process_begin(), import_hook.python_started_at or 0)) / 1e9


def _finish_when_written(folder: CheckpointFolder) -> None:
    """Finish the folder once everything queued so far is written."""
    if not write_queue.pending:
        folder.finish()
        return
    job = BackgroundSave(os.path.join(folder.path, "."), "", 0, folder.finish, step_clock.steps, 0)
    job.silent = True
    write_queue.submit(job)


def before_removal(path: str) -> None:
    """Finish the new checkpoint before a framework removes an older one."""
    folder = write_queue.folder
    if folder is None or folder.thread != threading.get_ident() or not os.path.isdir(folder.path):
        return
    if is_below(path, os.path.dirname(folder.path)) and not is_below(path, folder.path):
        folder.finish()


LAST_FILE = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")


def write_last_file(original: Callable[..., Any], state: Any, json_path: Any) -> Any:
    """Replacement of TrainerState.save_to_json, whose file marks the checkpoint as complete."""
    if write_queue.in_save():
        return original(state, json_path)
    start = monotonic_ns()
    with write_queue.internal():
        path = os.path.realpath(json_path)
        try:
            atomic, state_copy = atomic_file.AtomicFile(path), copy.deepcopy(state)
        except Exception:
            write_queue.wait("a file in the same folder")
            return original(state, json_path)

        def write() -> None:
            try:
                original(state_copy, atomic.path)
                atomic.commit()
            finally:
                atomic.discard()

        if not write_queue.pending:
            write()
            return None
        blocked_ns = monotonic_ns() - start
        write_queue.submit(
            BackgroundSave(path, "transformers", 0, write, step_clock.steps, blocked_ns)
        )
    return None


def last_complete(original: Callable[..., Any], folder: Any) -> Any:
    """Replacement of get_last_checkpoint that skips incomplete checkpoints."""
    newest = original(folder)
    if newest is None or _is_complete(newest):
        return newest
    numbers = [name for name in os.listdir(folder) if _NUMBERED.fullmatch(name)]
    for name in sorted(numbers, key=lambda name: -int(name.partition("-")[2])):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and _is_complete(path):
            return path
    return None


def _is_complete(folder: str) -> bool:
    """Whether the Trainer's last file exists and no write was abandoned."""
    return not atomic_file.has_abandoned_writes(folder) and os.path.exists(
        os.path.join(folder, LAST_FILE)
    )
