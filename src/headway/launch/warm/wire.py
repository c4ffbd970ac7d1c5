"""Messages with descriptors between processes, over plain descriptor numbers.

No socket object stays behind in a process that is forked: one that is collected later would close
a number that by then belongs to a file of the job.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Sequence
from typing import Any

MAX_DESCRIPTORS = 250  # descriptors that one message can carry, besides three of our own


def socket_pair() -> tuple[int, int]:
    """Two ends; messages keep their borders."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return one.detach(), other.detach()


def send_message(fd: int, message: bytes, handles: Sequence[int] = ()) -> None:
    """Raises OSError when the other end is gone."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        socket.send_fds(end, [message], list(handles), socket.MSG_NOSIGNAL)
    finally:
        end.detach()


def receive_message(fd: int, seconds: float | None = None) -> tuple[bytes, list[int]]:
    """The next message and its descriptors; empty when the other end is gone.

    Raises TimeoutError when nothing comes in time.
    """
    if seconds is not None and not is_readable(fd, seconds):
        raise TimeoutError
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        message, handles, _, _ = socket.recv_fds(end, 1 << 20, MAX_DESCRIPTORS + 3)
    except ConnectionError:
        return b"", []
    finally:
        end.detach()
    return message, handles


def receive_last(fd: int) -> bytes:
    """What came before now, empty if nothing did; from now on the other end cannot send."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=fd)
    try:
        end.shutdown(socket.SHUT_RD)
        return end.recv(1 << 20, socket.MSG_DONTWAIT)
    except OSError:
        return b""
    finally:
        end.detach()


def send_large(fd: int, content: dict[str, Any]) -> None:
    """As JSON in shared memory: a message itself is limited to the size of a buffer."""
    memory = os.memfd_create("headway", os.MFD_CLOEXEC)
    try:
        os.write(memory, json.dumps(content).encode())
        send_message(fd, b"large", [memory])
    finally:
        os.close(memory)


def receive_large(fd: int, seconds: float | None = None) -> dict[str, Any]:
    """What `send_large` sent; empty when the other end is gone."""
    _, handles = receive_message(fd, seconds)
    return read_large(handles[0]) if handles else {}


def read_large(memory: int) -> dict[str, Any]:
    """The content of such memory, which is closed."""
    with open(memory, "rb") as file:
        file.seek(0)
        content: dict[str, Any] = json.loads(file.read())
    return content


def is_readable(fd: int, seconds: float) -> bool:
    """Whether a message, or the end, comes within that time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


class SocketEnd:
    """One end that is kept for long, in a process whose job may close any descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = _fd_identity(fd)

    def usable(self) -> bool:
        """Whether the number still is what it was."""
        try:
            return _fd_identity(self.fd) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Once; nothing is closed that is not ours."""
        if self.usable():
            os.close(self.fd)


def _fd_identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
