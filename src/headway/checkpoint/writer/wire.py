"""Messages between a rank and its writer: JSON of any length, with descriptors."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("!Q")
CREDENTIALS = struct.Struct("3i")  # process, user, group
DESCRIPTORS = 16  # that one message may carry


class Gone(ConnectionError):
    """The other end is not there any more."""


def send(end: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises Gone where nobody will read it."""
    content = json.dumps(message).encode()
    try:
        socket.send_fds(end, [HEADER.pack(len(content))], list(descriptors), socket.MSG_NOSIGNAL)
        end.sendall(content)
    except OSError as error:
        raise Gone(str(error)) from None


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message; raises Gone where none will come, TimeoutError where none has come yet."""
    header, descriptors, _, _ = _received(end)
    while len(header) < HEADER.size:
        header += _some(end, HEADER.size - len(header))
    content = bytearray()
    (length,) = HEADER.unpack(header)
    while len(content) < length:
        content += _some(end, length - len(content))
    message: dict[str, Any] = json.loads(content)
    return message, descriptors


def user(end: socket.socket) -> int:
    """Who is at the other end: a socket without a file has no permissions of its own."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    found: int = CREDENTIALS.unpack(told)[1]
    return found


def close(descriptors: Sequence[int]) -> None:
    """All of them."""
    for descriptor in descriptors:
        os.close(descriptor)


def _received(end: socket.socket) -> tuple[bytes, list[int], int, Any]:
    try:
        header, descriptors, flags, address = socket.recv_fds(end, HEADER.size, DESCRIPTORS)
    except TimeoutError:
        raise
    except OSError as error:
        raise Gone(str(error)) from None
    if not header:
        raise Gone("the other end has closed")
    return header, descriptors, flags, address


def _some(end: socket.socket, most: int) -> bytes:
    try:
        content = end.recv(min(most, 1 << 20))
    except TimeoutError:
        raise
    except OSError as error:
        raise Gone(str(error)) from None
    if not content:
        raise Gone("the other end has closed")
    return content
