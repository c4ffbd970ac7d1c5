"""Operating system calls for durable files, in one module so that tests can replace the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

PIECE = 8 << 20  # bytes that are read or written at once
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Somebody else holds the lock."""


class NoLocks(Exception):
    """This file system has none."""


def create(path: str) -> int:
    """A new file, or an old one emptied, open for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def set_direct_io(fd: int, past: bool) -> bool:
    """Whether from now on what is written goes past the page cache, and that can be had."""
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (os.O_DIRECT if past else 0))
    except OSError:
        return False
    return True


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """All of it, in big pieces."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done : done + PIECE], at + done)


def start_writeback(fd: int, at: int, size: int) -> None:
    """Let the disk begin with what is written; what is still dirty stays in memory."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)


def sync(fd: int) -> None:
    """What the file holds survives a crash from now on."""
    os.fsync(fd)


def close(fd: int) -> None:
    """The file is done with."""
    os.close(fd)


def make_folder(path: str) -> None:
    """One folder; FileExistsError if there is something."""
    os.mkdir(path)


def sync_folder(path: str) -> None:
    """The names in a folder survive a crash from now on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no such thing, and need none
            raise
    finally:
        os.close(fd)


def rename(old: str, new: str) -> None:
    """A file replaces a file; a folder takes a name that is free."""
    os.rename(old, new)


def unlink(path: str) -> None:
    """Take a file away."""
    os.unlink(path)


def remove_folder(path: str) -> None:
    """Take an empty folder away."""
    os.rmdir(path)


def names(folder: str) -> list[str]:
    """What is in a folder."""
    return os.listdir(folder)


def is_folder(path: str) -> bool:
    """Whether there is a folder of that name."""
    return os.path.isdir(path)


def size(path: str) -> int:
    """Bytes of a file."""
    return os.stat(path).st_size


def changed(path: str) -> float:
    """When it was last changed."""
    return os.stat(path).st_mtime


def read(path: str) -> bytes:
    """All of a file."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        return file.read()


def _open_nonblocking(path: str, flags: int) -> int:
    """Not waiting for somebody to write, where a pipe was put in the place of a file."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "it is a pipe", path)
    return fd


def pieces(path: str) -> Iterator[memoryview]:
    """A file piece by piece; each is overwritten by the next."""
    room = memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
        while got := file.readinto(room):
            yield room[:got]


def lock(path: str, *, shared: bool = False, wait: bool = True) -> int:
    """Hold a lock until the number that comes back is closed; Busy if somebody else holds it.

    The file may be another one by the time that the lock is had: then it is asked for again.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, kind)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:  # taken away while we waited
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


# Made of those


def write_file(path: str, content: bytes) -> None:
    """A file whose content survives a crash; its name does once the folder is synced."""
    fd = create(path)
    try:
        write_at(fd, content, 0)
        sync(fd)
    finally:
        close(fd)


def replace_file(path: str, content: bytes, aside: str) -> None:
    """The old content or the new one is there at every instant; the new one once this returns."""
    try:
        write_file(aside, content)
        rename(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            unlink(aside)
        raise
    sync_folder(os.path.dirname(path))


def make_folders(path: str) -> None:
    """A folder and those above it, so that they survive a crash."""
    if is_folder(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make_folders(above)
    with contextlib.suppress(FileExistsError):
        make_folder(path)
        sync_folder(above or ".")


def remove_tree(path: str) -> None:
    """A folder with all that is in it; somebody else may be at it too."""
    try:
        found = names(path)
    except NotADirectoryError:
        with contextlib.suppress(FileNotFoundError):
            unlink(path)
        return
    except FileNotFoundError:
        return
    for name in found:
        remove_tree(f"{path}/{name}")
    with contextlib.suppress(FileNotFoundError):
        remove_folder(path)


OTHERS_CAN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def only_user_can_write(folder: str | os.PathLike[str]) -> bool:
    """Whether nobody but this user and root can have written a checkpoint, or can replace it."""
    path = os.fspath(folder).removeprefix("file://")
    if "://" in path:
        return False
    try:
        with os.scandir(path) as entries:
            found = [os.stat(path), os.stat(os.path.dirname(os.path.abspath(path)))]
            found += [entry.stat() for entry in entries]
    except OSError:
        return False
    return all(
        one.st_uid in (os.geteuid(), 0) and not one.st_mode & OTHERS_CAN_WRITE for one in found
    )
