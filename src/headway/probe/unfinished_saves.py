"""Records of checkpoint folders whose save has not finished, so that no restart resumes from them.

Before a trainer makes the folder of a checkpoint, a record of it is written next to the journals;
it is removed when the whole folder is on disk. A record that a killed process left behind names a
folder that no program should take for a checkpoint: it is removed before the next attempt.
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

RECORD_PREFIX = ".unfinished-"  # and a hash of the folder's path
ENV_RESTART = "TORCHELASTIC_RESTART_COUNT"


class UnfinishedSave:
    """The folder of a checkpoint that this process saves."""

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
        """All of it is on disk."""
        with contextlib.suppress(FileNotFoundError):
            self._record.unlink()


def current_attempt() -> list[str]:
    """Which attempt this process belongs to, and which of torchrun's own restarts in it."""
    return [os.environ.get(ENV_LAUNCH, ""), os.environ.get(ENV_RESTART, "0")]


def existed_before(folder: str, since: float) -> bool:
    """Whether something in that folder is older than a time: then it is no checkpoint of now."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.stat(follow_symlinks=False).st_mtime < since for entry in entries)
    except OSError:
        return False


def begin_save(folder: str, *, existed: bool) -> UnfinishedSave | None:
    """A save into that folder begins; None where nothing is recorded."""
    journal = os.environ.get(ENV_FOLDER)
    try:
        return UnfinishedSave(folder, journal, existed=existed) if journal else None
    except OSError:  # as without this, a kill may leave it in pieces
        return None


def remove_dead_saves(journal: str, current: list[str] | None = None) -> list[str]:
    """Remove the folders of dead saves that are recorded there, and the records; the folders.

    `current`: the attempt that is about to begin; the processes of every other one that recorded
    there have ended, wherever they ran. Without it only those that ended on this host are known.
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
            os.utime(path)  # where it cannot be removed, it may be of a save that was finished
            if _incomplete(record):
                shutil.rmtree(record["folder"])
                removed.append(record["folder"])
            os.unlink(path)
    return removed


def _read(path: str) -> dict[str, Any] | None:
    """A record, if this user has written it."""
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
    """Whether the process that wrote it has ended."""
    ended = process_ended(str(record.get("process")).encode())
    if ended is None:
        return current is not None and record.get("attempt") != current
    return ended


def _incomplete(record: dict[str, Any]) -> bool:
    """Whether that folder is there, and nothing in it is older than the save that was killed."""
    try:
        status = os.lstat(record["folder"])
    except OSError:
        return False
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and record.get("existed") is False
