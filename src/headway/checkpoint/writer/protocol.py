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
CREDENTIALS = struct.Struct("3i")  # process, user and group id
DESCRIPTORS = 16  # per message
MAX_MESSAGE_BYTES = 1 << 32  # bytes; a longer message is invalid


class PeerClosed(ConnectionError):
    """The other end has closed the connection."""


class NotAMessage(PeerClosed):
    """The other end does not follow the protocol."""


def send(end: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message; PeerClosed if it cannot be received."""
    content = json.dumps(message).encode()
    try:
        socket.send_fds(end, [HEADER.pack(len(content))], list(descriptors), socket.MSG_NOSIGNAL)
        end.sendall(content)
    except OSError as error:
        raise PeerClosed(str(error)) from None


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message; PeerClosed if there is none, TimeoutError if none has arrived."""
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
        raise NotAMessage("the received data is not a message")
    return message


def peer(end: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end: a socket without a file has no permissions."""
    credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, user, _ = CREDENTIALS.unpack(credentials)
    return process, user


def peer_closed(end: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)  # hang-ups and errors are always reported
    return bool(poll.poll(0))


def close(descriptors: Sequence[int]) -> None:
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
        raise PeerClosed("the other end has closed the connection")
    return header, descriptors


def _receive_some(end: socket.socket, most: int) -> bytes:
    try:
        content = end.recv(min(most, 1 << 20))
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerClosed(str(error)) from None
    if not content:
        raise PeerClosed("the other end has closed the connection")
    return content
