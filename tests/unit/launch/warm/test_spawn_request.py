"""Messages with descriptors, and requests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from headway.launch import linux
from headway.launch.warm import spawn_request
from headway.launch.warm.interpreter_command import read_command
from headway.launch.warm.spawn_request import (
    SpawnRequest,
    open_folder,
    request_from_this_process,
    request_process,
)


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    pair = spawn_request.socket_pair()
    yield pair
    for fd in pair:
        try:
            os.close(fd)
        except OSError:
            continue


def test_messages_with_descriptors(ends: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    spawn_request.send_message(ends[0], b"take", [writer])
    message, (handle,) = spawn_request.receive_message(ends[1])
    os.write(handle, b"x")
    assert (message, os.read(reader, 1)) == (b"take", b"x")
    for fd in (reader, writer, handle):
        os.close(fd)


def test_large_messages(ends: tuple[int, int]) -> None:
    content = {"words": ["x" * 1000] * 1000}
    spawn_request.send_large(ends[0], content)
    assert spawn_request.receive_large(ends[1], 1) == content


@pytest.mark.parametrize("answer", [b"", b"7"])
def test_an_answer_is_taken_or_refused(ends: tuple[int, int], answer: bytes) -> None:
    """Otherwise a child with a late reply would run in addition to one that is started cold."""
    if answer:
        spawn_request.send_message(ends[0], answer)
    assert spawn_request.receive_last(ends[1]) == answer
    with pytest.raises(OSError):
        spawn_request.send_message(ends[0], b"late")


def test_an_answer_at_the_end_of_the_time(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = spawn_request.receive_message

    def receive(fd: int, seconds: float | None = None) -> tuple[bytes, list[int]]:
        _, handles = take(ends[1])
        spawn_request.send_message(handles[1], b"7")
        for handle in handles:
            os.close(handle)
        raise TimeoutError

    monkeypatch.setattr(spawn_request, "receive_message", receive)
    wanted = request_from_this_process(read_command(sys.executable, ["python", "-c", ""], None), {})
    with open_folder(None) as cwd:
        assert request_process(ends[0], wanted, cwd, []) == 7


def test_silence_and_the_end(ends: tuple[int, int]) -> None:
    with pytest.raises(TimeoutError):
        spawn_request.receive_message(ends[1], 0.01)
    os.close(ends[0])
    assert spawn_request.receive_message(ends[1], 1) == (b"", [])
    with pytest.raises(OSError, match=r"pipe|reset"):
        spawn_request.send_message(ends[1], b"x")


def test_an_end_whose_number_has_become_another_file(ends: tuple[int, int]) -> None:
    end = spawn_request.SocketEnd(ends[0])
    assert end.usable()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, ends[0])
    os.close(nothing)
    assert not end.usable()
    end.close()
    os.fstat(ends[0])  # not closed, as it is not the same socket


def test_a_request_arrives_as_it_was_sent() -> None:
    invocation = read_command(sys.executable, ["python", "-Wx", "-u", "a.py", "\udcff"], None)
    request = request_from_this_process(invocation, {"A": "\udc80"}, fds=[0, 1], new_session=True)
    again = SpawnRequest.decode(request.encode())
    assert again.invocation == invocation and again.env == {"A": "\udc80"}
    assert again.parent == os.getpid() and again.new_session and again.fds == [0, 1]
    assert set(again.affinity) == os.sched_getaffinity(0)
    limits = {name: tuple(values) for name, values in again.limits.items()}
    assert limits == linux.resource_limits()


def test_ignored_signals_are_inherited() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        invocation = read_command(sys.executable, ["python", "-c", "1"], None)
        assert signal.SIGUSR1 in request_from_this_process(invocation, {}).ignored
        assert signal.SIGPIPE not in request_from_this_process(invocation, {}).ignored
        unchanged = request_from_this_process(invocation, {}, restore_signals=False)
        assert signal.SIGPIPE in unchanged.ignored
    finally:
        signal.signal(signal.SIGUSR1, before)
