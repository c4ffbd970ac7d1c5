"""A checkpoint of several files, as trainers save them: whole, or not to be resumed from.

What a killed process has left of one is removed before the next attempt (probe/unfinished.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from headway.checkpoint.behind.queue import BackgroundSave, CheckpointFolder, is_below, write_queue
from headway.journal.writer import now, process_begin
from headway.probe import imports, pace, unfinished
from headway.probe.recorder import guard, recorder

HOOK = "folders of checkpoints"
_saved: set[str] = set()  # folders that this process has saved before


def save_folder(
    folder_of: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A framework's call that saves everything into one folder."""
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
    """Rank 0 makes a checkpoint one; None for the others, and within another save."""
    if recorder.rank or write_queue.folder is not None or write_queue.busy():
        return None
    with write_queue.at_work():
        target = folder_of(*args, **kwargs)
        if not isinstance(target, (str, os.PathLike)) or "://" in os.fspath(target):
            return None
        path = os.path.realpath(target)
        existed = path in _saved or unfinished.existed_before(path, _process_begin())
        return CheckpointFolder(path, unfinished.begin_save(path, existed=existed))


def _process_begin() -> float:
    """By the wall clock; of a process that was forked ahead of time, when it was needed."""
    return time.time() - (now() - max(process_begin(), imports.python_started_at or 0)) / 1e9


def _finish_when_written(folder: CheckpointFolder) -> None:
    """When all that is queued so far is written."""
    if not write_queue.pending:
        folder.finish()
        return
    job = BackgroundSave(os.path.join(folder.path, "."), "", 0, folder.finish, pace.steps, 0)
    job.silent = True
    write_queue.submit(job)


def before_removal(path: str) -> None:
    """A framework that removes an older checkpoint counts on the new one, which is written."""
    folder = write_queue.folder
    if folder is None or folder.thread != threading.get_ident() or not os.path.isdir(folder.path):
        return
    if is_below(path, os.path.dirname(folder.path)) and not is_below(path, folder.path):
        folder.finish()
