"""The server over real sockets: half-sent and slow requests do not block other clients."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from headway.serve import server
from headway.serve.server import build_server
from tests.support import wait_until

pytestmark = pytest.mark.timeout(60)
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "


async def answer(scope: dict[str, object], receive: object, send: object) -> None:
    """`/large` is larger than the buffer of a socket."""
    size = 64 << 20 if scope["path"] == "/large" else 2
    length = (b"content-length", str(size).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})  # type: ignore[operator]
    for _ in range(max(size >> 20, 1)):
        body = b"x" * min(size, 1 << 20)
        await send({"type": "http.response.body", "body": body, "more_body": size > 2})  # type: ignore[operator]
    if size > 2:
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server in a thread of this process."""
    running: uvicorn.Server = build_server(answer)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        wait_until(lambda: running.started)
        yield bound.getsockname()[1]
        running.should_exit = running.force_exit = True
        thread.join(20)


def connect(port: int, sent: bytes, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20, (source, 0))
    connection.sendall(sent)
    return connection


def status(port: int, source: str = "127.0.0.1") -> int:
    asking = http.client.HTTPConnection("127.0.0.1", port, 20, (source, 0))
    with contextlib.closing(asking):
        asking.request("GET", "/")
        return asking.getresponse().status


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection; False if it responds or waits."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_half_sent_requests_of_one_address_make_room_for_others(port: int) -> None:
    with contextlib.ExitStack() as stack:
        half = [stack.enter_context(connect(port, HALF)) for _ in range(300)]
        assert status(port) == status(port, "127.0.0.2") == 200
        assert closed(half[0]), "the oldest one goes"
        half[-1].sendall(b"y\r\n\r\n")
        assert half[-1].recv(12) == b"HTTP/1.1 200", "and the newest stays"


def test_half_sent_requests_of_many_addresses_make_room_for_others(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(320):
            stack.enter_context(connect(port, HALF, f"127.0.1.{1 + number % 20}"))
        assert status(port) == 200


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"]
)
def test_a_request_has_a_deadline(port: int, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    with connect(port, sent) as slow:
        assert closed(slow)
    with connect(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") as used:
        assert used.recv(12) == b"HTTP/1.1 200"
        used.sendall(HALF)  # the next request on the same connection
        received = b"."
        while received:
            received = used.recv(1 << 16)


def test_bytes_one_by_one_do_not_move_the_deadline(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    with connect(port, HALF) as slow:
        slow.settimeout(0.02)
        ended = False
        for _ in range(500):
            with contextlib.suppress(TimeoutError):
                ended = closed(slow)
            if ended:
                break
            with contextlib.suppress(OSError):
                slow.sendall(b"y")
        assert ended


def test_an_answer_that_nobody_reads_has_a_deadline(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALL_S", 0.3)
    with connect(port, b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n") as lazy:
        assert lazy.recv(12) == b"HTTP/1.1 200"
        threading.Event().wait(0.6)
        total, received = 0, b"."
        with contextlib.suppress(ConnectionError):
            while received:
                received = lazy.recv(1 << 20)
                total += len(received)
        assert total < 64 << 20
    assert status(port) == 200
