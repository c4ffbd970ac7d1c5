"""Operating system calls for durable files, in one module so that tests can replace the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

PIECE = 8 << 20  # bytes per read or write
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Another process holds the lock."""


class NoLocks(Exception):
    """The file system does not support locks."""


def create(path: str) -> int:
    """Create a file, or truncate an existing one; open it for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def set_direct_io(fd: int, direct: bool) -> bool:
    """Switch O_DIRECT on or off; return whether that worked."""
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (os.O_DIRECT if direct else 0))
    except OSError:
        return False
    return True


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of it, in blocks."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done : done + PIECE], at + done)


def start_writeback(fd: int, at: int, size: int) -> None:
    """Start writing dirty pages to disk; they stay in memory until then."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)


def sync(fd: int) -> None:
    """Make the content of the file durable."""
    os.fsync(fd)


def close(fd: int) -> None:
    os.close(fd)


def make_folder(path: str) -> None:
    """Create one folder; FileExistsError if the name exists."""
    os.mkdir(path)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems do not support it, and do not need it
            raise
    finally:
        os.close(fd)


def rename(old: str, new: str) -> None:
    """A file may replace a file; a folder needs a free name."""
    os.rename(old, new)


def unlink(path: str) -> None:
    os.unlink(path)


def remove_folder(path: str) -> None:
    """Remove an empty folder."""
    os.rmdir(path)


def names(folder: str) -> list[str]:
    """The names in a folder."""
    return os.listdir(folder)


def is_folder(path: str) -> bool:
    return os.path.isdir(path)


def size(path: str) -> int:
    """Size of a file in bytes."""
    return os.stat(path).st_size


def changed(path: str) -> float:
    """Modification time."""
    return os.stat(path).st_mtime


def read(path: str) -> bytes:
    with open(path, "rb", opener=_open_nonblocking) as file:
        return file.read()


def _open_nonblocking(path: str, flags: int) -> int:
    """Do not block if a pipe was put in the place of the file."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "it is a pipe", path)
    return fd


def pieces(path: str) -> Iterator[memoryview]:
    """A file in blocks; each block is overwritten by the next."""
    buffer = memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
        while size := file.readinto(buffer):
            yield buffer[:size]


def lock(path: str, *, shared: bool = False, wait: bool = True) -> int:
    """Hold a lock until the returned descriptor is closed. Busy if another process holds it.

    If the file was replaced while waiting for the lock, lock the new file.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, kind)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:  # removed while waiting
            pass
        except BlockingIOError:
            os.close(fd)
            raise Busy(path) from None
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                raise NoLocks(path) from None
            raise
        os.close(fd)


def write_file(path: str, content: bytes) -> None:
    """Write a file durably; its name is durable once the folder is synced."""
    fd = create(path)
    try:
        write_at(fd, content, 0)
        sync(fd)
    finally:
        close(fd)


def replace_file(path: str, content: bytes, temporary: str) -> None:
    """Replace a file atomically; the new content is durable once this returns."""
    try:
        write_file(temporary, content)
        rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def make_folders(path: str) -> None:
    """Create a folder and its parents, durably."""
    if is_folder(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make_folders(above)
    with contextlib.suppress(FileExistsError):
        make_folder(path)
        sync_folder(above or ".")


def remove_tree(path: str) -> None:
    """Remove a folder and its content; other processes may do the same."""
    try:
        entries = names(path)
    except NotADirectoryError:
        with contextlib.suppress(FileNotFoundError):
            unlink(path)
        return
    except FileNotFoundError:
        return
    for name in entries:
        remove_tree(f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        remove_folder(path)


OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def only_user_can_write(folder: str | os.PathLike[str]) -> bool:
    """Whether only this user and root can have written a checkpoint, or can replace it."""
    path = os.fspath(folder).removeprefix("file://")
    if "://" in path:
        return False
    try:
        with os.scandir(path) as entries:
            stats = [os.stat(path), os.stat(os.path.dirname(os.path.abspath(path)))]
            stats += [entry.stat() for entry in entries]
    except OSError:
        return False
    return all(
        status.st_uid in (os.geteuid(), 0) and not status.st_mode & OTHERS_CAN_WRITE
        for status in stats
    )
