"""Safe access to the files of a run folder, which may be a pipe, a device, a link, or very large.

Only regular files are read, and descriptors are never 0, 1 or 2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

JOURNAL_LIMIT = 2 << 30  # bytes; a journal grows by about 10 MB per day
FILE_LIMIT = 64 << 20  # of run.json and the like


class NotARegularFile(OSError):
    """The file is not a regular file, or is too large."""


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; OSError for anything else.

    Opening a pipe would wait for its writer; reading a device may never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotARegularFile(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return open(fd, "rb")


def read_file(path: str | os.PathLike[str], limit: int = FILE_LIMIT) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise NotARegularFile(errno.EFBIG, f"it has {size} bytes", os.fspath(path))
        return file.read(limit)


def fill_standard_fds() -> list[int]:
    """Open free descriptors from 0 to 2, which are closed again by exec."""
    descriptors: list[int] = []
    with contextlib.suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
            descriptors.append(fd)
        os.close(fd)
    return descriptors


@contextlib.contextmanager
def above_standard_fds() -> Iterator[None]:
    """Files opened in this context get descriptors above 2.

    A job may be started without standard streams, or close them to become a daemon. If it still
    writes to these descriptors, that must not end up in a file of Headway.
    """
    descriptors = fill_standard_fds()
    try:
        yield
    finally:
        for fd in descriptors:
            os.close(fd)


def file_identity(path: str) -> str | None:
    """Inode, size and modification time of a file; of a folder, those of its `.metadata`."""
    if os.path.isdir(path):
        inner = os.path.join(path, ".metadata")
        path = inner if os.path.exists(inner) else path
    try:
        status = os.stat(path)
    except OSError:
        return None
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
