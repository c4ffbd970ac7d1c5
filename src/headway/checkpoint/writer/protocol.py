"""Messages between a rank and its writer process: JSON of any length, with file descriptors."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("!Q")
CREDENTIALS = struct.Struct("3i")  # process, user, group
DESCRIPTORS = 16  # that one message may carry
MAX_MESSAGE_BYTES = 1 << 32  # bytes: more is no message, but somebody who says something else


class PeerClosed(ConnectionError):
    """The other end is not there any more."""


class NotAMessage(PeerClosed):
    """The other end says something else than messages."""


def send(end: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises PeerClosed where nobody will read it."""
    content = json.dumps(message).encode()
    try:
        socket.send_fds(end, [HEADER.pack(len(content))], list(descriptors), socket.MSG_NOSIGNAL)
        end.sendall(content)
    except OSError as error:
        raise PeerClosed(str(error)) from None


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message; PeerClosed where none will come, TimeoutError where none is there yet."""
    header, descriptors = _receive_header(end)
    try:
        while len(header) < HEADER.size:
            header += _receive_some(end, HEADER.size - len(header))
        return _message(end, *HEADER.unpack(header)), descriptors
    except BaseException:
        close(descriptors)
        raise


def _message(end: socket.socket, length: int) -> dict[str, Any]:
    content = bytearray()
    while length <= MAX_MESSAGE_BYTES and len(content) < length:
        content += _receive_some(end, length - len(content))
    try:
        message = json.loads(content)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise NotAMessage("what came is no message")
    return message


def peer(end: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end: a socket without a file has no permissions."""
    told = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(told)
    return process, user


def peer_closed(end: socket.socket) -> bool:
    """Whether nobody is at the other end any more."""
    looking = select.poll()
    looking.register(end, select.POLLRDHUP)  # a hang-up and an error are told of always
    return bool(looking.poll(0))


def close(descriptors: Sequence[int]) -> None:
    """All of them."""
    for descriptor in descriptors:
        os.close(descriptor)


def _receive_header(end: socket.socket) -> tuple[bytes, list[int]]:
    try:
        header, descriptors, _, _ = socket.recv_fds(end, HEADER.size, DESCRIPTORS)
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerClosed(str(error)) from None
    if not header:
        raise PeerClosed("the other end has closed")
    return header, descriptors


def _receive_some(end: socket.socket, most: int) -> bytes:
    try:
        content = end.recv(min(most, 1 << 20))
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerClosed(str(error)) from None
    if not content:
        raise PeerClosed("the other end has closed")
    return content
