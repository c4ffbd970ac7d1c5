"""Open the files of a run folder, which may be anything: a pipe, a device, a link, or huge.

Only regular files are read, and descriptors are kept above the three standard ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

JOURNAL_LIMIT = 2 << 30  # bytes; a journal grows by some 10 MB a day
FILE_LIMIT = 64 << 20  # of run.json and the like


class NotARegularFile(OSError):
    """What is there cannot be read to its end."""


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to be read; an OSError for anything else.

    Opening a pipe would wait for its writer, reading a device may never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotARegularFile(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return open(fd, "rb")


def read_file(path: str | os.PathLike[str], limit: int = FILE_LIMIT) -> bytes:
    """The content of a regular file that is not larger than `limit`."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise NotARegularFile(errno.EFBIG, f"it has {size} bytes", os.fspath(path))
        return file.read(limit)


def fill_standard_fds() -> list[int]:
    """Take the numbers 0 to 2 where they are free; what exec starts has them free again."""
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
            taken.append(fd)
        os.close(fd)
    return taken


@contextlib.contextmanager
def above_standard_fds() -> Iterator[None]:
    """What is opened in it gets a number above 2.

    A job may be started without standard streams, or close them to become a daemon. What it writes
    to these numbers nevertheless must not get into a file of ours.
    """
    taken = fill_standard_fds()
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


def file_identity(path: str) -> str | None:
    """The file that is there now."""
    if os.path.isdir(path):
        inner = os.path.join(path, ".metadata")
        path = inner if os.path.exists(inner) else path
    try:
        status = os.stat(path)
    except OSError:
        return None
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
