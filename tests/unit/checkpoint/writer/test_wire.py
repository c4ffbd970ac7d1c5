"""Messages between a rank and its writer, and what is none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from headway.checkpoint.writer import wire


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.settimeout(5)
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_messages_come_in_order_with_their_descriptors(ends: Ends) -> None:
    ours, theirs = ends
    reading, writing = os.pipe()
    long = {"op": "whole", "text": "ü" * 300_000}  # more than a socket takes at once

    def send() -> None:
        wire.send(ours, long, [writing])
        wire.send(ours, {"op": "status"})

    sender = threading.Thread(target=send)
    sender.start()
    message, (given,) = wire.receive(theirs)
    assert message == long
    assert wire.receive(theirs) == ({"op": "status"}, [])
    sender.join()
    os.write(given, b"through")
    assert os.read(reading, 10) == b"through"
    wire.close([reading, writing, given])


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire.HEADER.pack(4) + b"nope",
        wire.HEADER.pack(2) + b"[]",
        wire.HEADER.pack(2) + b"\xff\xfe",
        wire.HEADER.pack(0),
        wire.HEADER.pack(wire.MAX_MESSAGE_BYTES + 1),
    ],
)
def test_what_is_no_message_ends_it(content: bytes, ends: Ends) -> None:
    ours, theirs = ends
    before = open_files()
    socket.send_fds(ours, [content], [ours.fileno()])
    with pytest.raises(wire.NotAMessage):
        wire.receive(theirs)
    assert open_files() == before


@pytest.mark.parametrize("content", [b"", b"\0\0\0", wire.HEADER.pack(10) + b'{"op":'])
def test_an_end_that_goes_in_the_middle_is_gone(content: bytes, ends: Ends) -> None:
    ours, theirs = ends
    ours.sendall(content)
    ours.close()
    with pytest.raises(wire.PeerClosed) as raised:
        wire.receive(theirs)
    assert raised.type is wire.PeerClosed


def test_nobody_reads_it(ends: Ends) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(wire.PeerClosed):
        wire.send(ours, {"op": "status"})


def test_nothing_has_come_yet(ends: Ends) -> None:
    ours, theirs = ends
    theirs.settimeout(0.01)
    with pytest.raises(TimeoutError):
        wire.receive(theirs)
    ours.sendall(wire.HEADER.pack(2))
    with pytest.raises(TimeoutError):
        wire.receive(theirs)


def test_whether_somebody_is_there(ends: Ends) -> None:
    ours, theirs = ends
    assert not wire.peer_closed(theirs)
    wire.send(ours, {"op": "status"})
    assert not wire.peer_closed(theirs), "there is a message"
    assert wire.receive(theirs) == ({"op": "status"}, [])
    ours.close()
    assert wire.peer_closed(theirs)


def test_who_is_there(ends: Ends) -> None:
    assert wire.peer(ends[0]) == (os.getpid(), os.getuid())
