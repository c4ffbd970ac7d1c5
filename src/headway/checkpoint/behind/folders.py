"""A checkpoint of several files, as trainers save them: whole, or not to be resumed from.

What a killed process has left of one is removed before the next attempt (probe/unfinished.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from headway.checkpoint.behind.queue import Folder, Job, below, queued
from headway.journal.writer import now, process_begin
from headway.probe import imports, pace, unfinished
from headway.probe.recorder import guard, recorder

FOLDERS = "folders of checkpoints"
_saved: set[str] = set()  # folders that this process has saved before


def save(
    folder_of: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A framework's call that saves everything into one folder."""
    folder = guard(FOLDERS, _folder, folder_of, args, kwargs)
    if folder is None:
        return original(*args, **kwargs)
    queued.folder = folder
    try:
        result = original(*args, **kwargs)
    except BaseException:
        folder.failed = True
        raise
    finally:
        folder.thread = queued.folder = None
        _finish(folder)
    _saved.add(folder.path)
    return result


def _folder(folder_of: Callable[..., Any], args: Any, kwargs: Any) -> Folder | None:
    """Rank 0 makes a checkpoint one; None for the others, and within another save."""
    if recorder.rank or queued.folder is not None or queued.busy():
        return None
    with queued.at_work():
        target = folder_of(*args, **kwargs)
        if not isinstance(target, (str, os.PathLike)) or "://" in os.fspath(target):
            return None
        path = os.path.realpath(target)
        existed = path in _saved or unfinished.existed(path, _process_begin())
        return Folder(path, unfinished.begin(path, existed=existed))


def _process_begin() -> float:
    """By the wall clock; of a process that was forked ahead of time, when it was needed."""
    return time.time() - (now() - max(process_begin(), imports.ENTERED or 0)) / 1e9


def _finish(folder: Folder) -> None:
    """When all that is queued so far is written."""
    if not queued.pending:
        folder.finish()
        return
    job = Job(os.path.join(folder.path, "."), "", 0, folder.finish, pace.steps, 0)
    job.silent = True
    queued.submit(job)


def before_removal(path: str) -> None:
    """A framework that removes an older checkpoint counts on the new one, which is written."""
    folder = queued.folder
    if folder is None or folder.thread != threading.get_ident() or not os.path.isdir(folder.path):
        return
    if below(path, os.path.dirname(folder.path)) and not below(path, folder.path):
        folder.finish()
