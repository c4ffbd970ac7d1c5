"""Messages between a rank and its writer, and what is none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from headway.checkpoint.writer import protocol


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
        protocol.send(ours, long, [writing])
        protocol.send(ours, {"op": "status"})

    sender = threading.Thread(target=send)
    sender.start()
    message, (given,) = protocol.receive(theirs)
    assert message == long
    assert protocol.receive(theirs) == ({"op": "status"}, [])
    sender.join()
    os.write(given, b"through")
    assert os.read(reading, 10) == b"through"
    protocol.close([reading, writing, given])


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        protocol.HEADER.pack(4) + b"nope",
        protocol.HEADER.pack(2) + b"[]",
        protocol.HEADER.pack(2) + b"\xff\xfe",
        protocol.HEADER.pack(0),
        protocol.HEADER.pack(protocol.MAX_MESSAGE_BYTES + 1),
    ],
)
def test_what_is_no_message_ends_it(content: bytes, ends: Ends) -> None:
    ours, theirs = ends
    before = open_files()
    socket.send_fds(ours, [content], [ours.fileno()])
    with pytest.raises(protocol.NotAMessage):
        protocol.receive(theirs)
    assert open_files() == before


@pytest.mark.parametrize("content", [b"", b"\0\0\0", protocol.HEADER.pack(10) + b'{"op":'])
def test_an_end_that_goes_in_the_middle_is_gone(content: bytes, ends: Ends) -> None:
    ours, theirs = ends
    ours.sendall(content)
    ours.close()
    with pytest.raises(protocol.PeerClosed) as raised:
        protocol.receive(theirs)
    assert raised.type is protocol.PeerClosed


def test_nobody_reads_it(ends: Ends) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(protocol.PeerClosed):
        protocol.send(ours, {"op": "status"})


def test_nothing_has_come_yet(ends: Ends) -> None:
    ours, theirs = ends
    theirs.settimeout(0.01)
    with pytest.raises(TimeoutError):
        protocol.receive(theirs)
    ours.sendall(protocol.HEADER.pack(2))
    with pytest.raises(TimeoutError):
        protocol.receive(theirs)


def test_whether_somebody_is_there(ends: Ends) -> None:
    ours, theirs = ends
    assert not protocol.peer_closed(theirs)
    protocol.send(ours, {"op": "status"})
    assert not protocol.peer_closed(theirs), "there is a message"
    assert protocol.receive(theirs) == ({"op": "status"}, [])
    ours.close()
    assert protocol.peer_closed(theirs)


def test_who_is_there(ends: Ends) -> None:
    assert protocol.peer(ends[0]) == (os.getpid(), os.getuid())
