"""Records of checkpoint folders with an unfinished save, so that no restart resumes from them.

Before a trainer creates the folder of a checkpoint, a record is written next to the journals; it is
removed when the whole folder is on disk. If a process was killed in between, the folder named by
the record is incomplete: it is removed before the next attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from headway.probe import ENV_FOLDER, ENV_LAUNCH
from headway.storage.atomic_write import write_atomically
from headway.storage.process_identity import identify_process, process_ended

RECORD_PREFIX = ".unfinished-"  # followed by a hash of the folder's path
ENV_RESTART = "TORCHELASTIC_RESTART_COUNT"


class UnfinishedSave:
    """A checkpoint folder that this process is writing."""

    def __init__(self, folder: str, journal: str, *, existed: bool) -> None:
        self.folder = folder
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        self._record = Path(journal, RECORD_PREFIX + name)
        content = {
            "folder": folder,
            "existed": existed,  # with files of an earlier save
            "attempt": current_attempt(),
            "process": identify_process().decode(),
        }
        write_atomically(self._record, json.dumps(content))

    def finish(self) -> None:
        """Remove the record: the whole folder is on disk."""
        with contextlib.suppress(FileNotFoundError):
            self._record.unlink()


def current_attempt() -> list[str]:
    """The launch of this process, and the restart by torchrun within it."""
    return [os.environ.get(ENV_LAUNCH, ""), os.environ.get(ENV_RESTART, "0")]


def existed_before(folder: str, since: float) -> bool:
    """Whether the folder has an entry older than `since`, so that it is not a new checkpoint."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.stat(follow_symlinks=False).st_mtime < since for entry in entries)
    except OSError:
        return False


def begin_save(folder: str, *, existed: bool) -> UnfinishedSave | None:
    """Record a save that begins; None if this process is not recorded."""
    journal = os.environ.get(ENV_FOLDER)
    try:
        return UnfinishedSave(folder, journal, existed=existed) if journal else None
    except OSError:  # without a record, a kill may leave an incomplete folder
        return None


def remove_dead_saves(journal: str, current: list[str] | None = None) -> list[str]:
    """Remove the folders of saves whose process has ended, and their records; return the folders.

    `current`: the attempt that is about to begin; the processes of all other attempts have ended,
    on any host. Without it, only processes of this host are checked.
    """
    try:
        names = [name for name in os.listdir(journal) if name.startswith(RECORD_PREFIX)]
    except OSError:
        return []
    removed = []
    for path in (os.path.join(journal, name) for name in names):
        record = _read(path)
        if record is None or not _has_ended(record, current):
            continue
        with contextlib.suppress(OSError):
            os.utime(path)  # fails if it cannot be removed: the save may have finished
            if _incomplete(record):
                shutil.rmtree(record["folder"])
                removed.append(record["folder"])
            os.unlink(path)
    return removed


def _read(path: str) -> dict[str, Any] | None:
    """Read a record, if this user has written it."""
    try:
        with open(path, opener=_open_no_follow) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            record = json.load(file)
        return record if os.path.isabs(record["folder"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _has_ended(record: dict[str, Any], current: list[str] | None) -> bool:
    """Whether the process that wrote the record has ended."""
    ended = process_ended(str(record.get("process")).encode())
    if ended is None:
        return current is not None and record.get("attempt") != current
    return ended


def _incomplete(record: dict[str, Any]) -> bool:
    """Whether the folder exists and had no content before the save that was killed."""
    try:
        status = os.lstat(record["folder"])
    except OSError:
        return False
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and record.get("existed") is False
