"""Replace a file atomically: write it in a folder next to the target, then rename it.

The folder stays locked while the writing process lives. A folder whose lock is free belongs to a
killed process and is removed by the next writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time

PREFIX = ".headway-save-"
LOCK = ".headway-lock"


class AtomicFile:
    """The next content of a file; `path` has the same file name."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._mode = _permissions(target)
        self.parent, name = os.path.split(target)
        while True:
            self.folder, self._lock = _make_locked_folder(self.parent)
            if self._lock is not None:
                break
        self.path = os.path.join(self.folder, name)

    def commit(self) -> None:
        """Replace the file, durably and atomically."""
        if self._mode is not None:
            os.chmod(self.path, self._mode)
        sync(self.path)
        os.replace(self.path, self.target)
        sync(self.parent)

    def discard(self) -> None:
        """Remove everything."""
        _remove_folder(self.folder)
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                os.close(lock)


def _make_locked_folder(parent: str) -> tuple[str, int | None]:
    """A folder and its lock; no lock if another process has removed the folder."""
    folder = os.path.join(parent, f"{PREFIX}{os.getpid()}-{time.monotonic_ns():x}")
    os.mkdir(folder)
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return folder, None
    except OSError:
        os.rmdir(folder)
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return folder, None
    except OSError:
        return folder, lock  # file system without locks: folders are never removed there
    if os.fstat(lock).st_nlink == 0:
        os.close(lock)
        return folder, None
    return folder, lock


def remove_abandoned(parent: str) -> None:
    """Remove what killed processes have left here."""
    with contextlib.suppress(OSError):
        folders = [entry.path for entry in os.scandir(parent) if entry.name.startswith(PREFIX)]
        for folder in folders:
            _remove_if_abandoned(folder)


def has_abandoned_writes(parent: str) -> bool:
    """Whether a process was killed before everything it saved here was written."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return any(_is_abandoned(entry.path) for entry in entries if entry.name.startswith(PREFIX))
    return False


def _is_abandoned(folder: str) -> bool:
    """Whether no process holds the lock, as far as the file system can tell."""
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(lock)
    return True


def _remove_if_abandoned(folder: str) -> None:
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # killed there, or just being created: then it is created again
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        return
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_folder(folder)
    except OSError:
        pass  # its process is alive
    finally:
        os.close(lock)


def _remove_folder(folder: str) -> None:
    """Remove the lock last: a folder without a lock is empty."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder), key=LOCK.__eq__):
            os.remove(os.path.join(folder, name))
        os.rmdir(folder)


def _permissions(target: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        return None


def sync(path: str) -> None:
    """Make a file or folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
