"""Sockets of the writer processes, in a folder that only this user can access.

No other user can take the name of a writer, and both ends check the user of their peer. Containers
share writers only if they share that folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator

from headway.checkpoint.writer import protocol
from headway.errors import HeadwayError
from headway.storage import disk

BACKLOG = 128  # ranks that connect at the same time
PUBLIC_FOLDERS = ("/tmp", "/dev/shm")  # other users may have taken the name there
SUFFIXES = ("", ".lock", ".log")  # file name suffixes of a writer: its socket, its lock, its log


class NoPrivateFolder(HeadwayError):
    """There is no folder in which only this user can create sockets."""

    code = "no-folder-for-writers"


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A path to the folder that is short enough for a socket address."""
    descriptor = _open_folder()
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _open_folder() -> int:
    bases = [*PUBLIC_FOLDERS, os.environ.get("XDG_RUNTIME_DIR", "")]
    with contextlib.suppress(OSError):
        bases.insert(0, tempfile.gettempdir())
    own = _own_base()
    for base in filter(None, [*bases, own]):
        if base == own:  # created only if other users have taken all other folders
            with contextlib.suppress(OSError):
                os.makedirs(base, 0o700, exist_ok=True)
        path = os.path.join(base, f"headway-{os.geteuid()}")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags)
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return descriptor
            os.close(descriptor)  # another user was faster
    raise NoPrivateFolder(
        f"cannot create a folder for checkpoint writers in {', '.join(filter(None, [*bases, own]))}"
    )


def _own_base() -> str:
    """A folder in the home of this user, which machines may share; empty without a home."""
    home = os.path.expanduser("~")
    return os.path.join(home, ".cache", os.uname().nodename) if os.path.isabs(home) else ""


def connect(name: str, timeout_s: float) -> socket.socket:
    """Connect to the writer of that name. OSError or PeerClosed if this user has none."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.settimeout(timeout_s)
        with folder() as path:
            end.connect(f"{path}/{name}")
        if not is_own_peer(end):
            raise protocol.PeerClosed("the process belongs to another user")
    except BaseException:
        end.close()
        raise
    return end


def is_own_peer(end: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    return protocol.peer(end)[1] == os.geteuid()


class Address:
    """The name of a writer, held until it is released. disk.Busy if another process holds it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = -1
        with folder() as path:
            self._lock = disk.lock(f"{path}/{name}.lock", wait=False)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with contextlib.suppress(FileNotFoundError):  # left by a killed writer
                    os.unlink(f"{path}/{name}")
                self.socket.bind(f"{path}/{name}")
                self.socket.listen(BACKLOG)
            except OSError:
                self.release()
                raise

        self._sweep()

    def _sweep(self) -> None:
        """Remove the files of killed writers."""
        with contextlib.suppress(OSError), folder() as path:
            for name in disk.names(path):
                base, _, kind = name.rpartition(".")
                if kind == "lock" and base != self._name:
                    with contextlib.suppress(disk.Busy, OSError):
                        lock = disk.lock(f"{path}/{name}", wait=False)
                        _unlink(path, base)
                        disk.close(lock)

    def release(self) -> None:
        """Remove its files and free the name."""
        self.socket.close()
        if self._lock < 0:
            return
        with contextlib.suppress(OSError, NoPrivateFolder), folder() as path:
            _unlink(path, self._name)
        disk.close(self._lock)
        self._lock = -1


def _unlink(path: str, name: str) -> None:
    for kind in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}/{name}{kind}")


def open_log(name: str) -> int:
    """A descriptor of the log file for the last messages of a writer."""
    with folder() as path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(f"{path}/{name}.log", flags, 0o600)


def last_log_line(name: str) -> str:
    """The last line of the log file; empty if there is none."""
    with contextlib.suppress(OSError, NoPrivateFolder), folder() as path:
        lines = disk.read(f"{path}/{name}.log")[-4096:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
