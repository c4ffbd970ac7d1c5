"""Messages, requests, thread counts, reads of the environment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.launch.warm import kernel, nest, wire
from headway.launch.warm.command import ColdStartRequired, read_command
from headway.launch.warm.devices import DeviceCountStub
from headway.launch.warm.request import (
    SpawnRequest,
    open_folder,
    request_from_this_process,
    request_process,
)
from headway.launch.warm.threads import openblas_count
from headway.launch.warm.watching import EnvironmentReads


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    pair = wire.socket_pair()
    yield pair
    for fd in pair:
        try:
            os.close(fd)
        except OSError:
            continue


def test_messages_with_descriptors(ends: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    wire.send_message(ends[0], b"take", [writer])
    message, (handle,) = wire.receive_message(ends[1])
    os.write(handle, b"x")
    assert (message, os.read(reader, 1)) == (b"take", b"x")
    for fd in (reader, writer, handle):
        os.close(fd)


def test_large_messages(ends: tuple[int, int]) -> None:
    content = {"words": ["x" * 1000] * 1000}
    wire.send_large(ends[0], content)
    assert wire.receive_large(ends[1], 1) == content


@pytest.mark.parametrize("answer", [b"", b"7"])
def test_an_answer_is_taken_or_refused(ends: tuple[int, int], answer: bytes) -> None:
    """Else a child whose answer comes too late would run beside the one that is started cold."""
    if answer:
        wire.send_message(ends[0], answer)
    assert wire.receive_last(ends[1]) == answer
    with pytest.raises(OSError):
        wire.send_message(ends[0], b"late")


def test_an_answer_at_the_end_of_the_time(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = wire.receive_message

    def receive(fd: int, seconds: float | None = None) -> tuple[bytes, list[int]]:
        _, handles = take(ends[1])
        wire.send_message(handles[1], b"7")
        for handle in handles:
            os.close(handle)
        raise TimeoutError

    monkeypatch.setattr(wire, "receive_message", receive)
    wanted = request_from_this_process(read_command(sys.executable, ["python", "-c", ""], None), {})
    with open_folder(None) as cwd:
        assert request_process(ends[0], wanted, cwd, []) == 7


def test_silence_and_the_end(ends: tuple[int, int]) -> None:
    with pytest.raises(TimeoutError):
        wire.receive_message(ends[1], 0.01)
    os.close(ends[0])
    assert wire.receive_message(ends[1], 1) == (b"", [])
    with pytest.raises(OSError, match=r"pipe|reset"):
        wire.send_message(ends[1], b"x")


def test_an_end_whose_number_has_become_another_file(ends: tuple[int, int]) -> None:
    end = wire.SocketEnd(ends[0])
    assert end.usable()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, ends[0])
    os.close(nothing)
    assert not end.usable()
    end.close()
    os.fstat(ends[0])  # it was not closed: it is not ours


def test_a_request_arrives_as_it_was_sent() -> None:
    invocation = read_command(sys.executable, ["python", "-Wx", "-u", "a.py", "\udcff"], None)
    asked = request_from_this_process(invocation, {"A": "\udc80"}, fds=[0, 1], new_session=True)
    again = SpawnRequest.decode(asked.encode())
    assert again.invocation == invocation and again.env == {"A": "\udc80"}
    assert again.parent == os.getpid() and again.new_session and again.fds == [0, 1]
    assert set(again.affinity) == os.sched_getaffinity(0)
    limits = {name: tuple(values) for name, values in again.limits.items()}
    assert limits == kernel.resource_limits()


def test_ignored_signals_are_inherited() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        invocation = read_command(sys.executable, ["python", "-c", "1"], None)
        assert signal.SIGUSR1 in request_from_this_process(invocation, {}).ignored
        assert signal.SIGPIPE not in request_from_this_process(invocation, {}).ignored
        kept = request_from_this_process(invocation, {}, restore_signals=False)
        assert signal.SIGPIPE in kept.ignored
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "99"}, 8),
        ({"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        ({"OPENBLAS_NUM_THREADS": "0", "OMP_NUM_THREADS": "4"}, 4),
        ({"OMP_NUM_THREADS": "auto"}, 8),
    ],
)
def test_threads_of_openblas(env: dict[str, str], count: int) -> None:
    assert openblas_count(env, 8) == count


def test_reads_of_the_environment() -> None:
    with EnvironmentReads() as reads:
        os.environ.get("ONE")
        os.getenv("TWO")
        "THREE" in os.environ  # noqa: B015
        os.environ.setdefault("PATH", "")
    assert reads.names == {"ONE", "TWO", "THREE", "PATH"} and not reads.all_by
    os.environ.get("AFTER")
    assert "AFTER" not in reads.names


@pytest.mark.parametrize(
    "how", [dict, list, lambda e: e.copy(), lambda e: [v for _, v in e.items()]]
)
def test_going_through_the_whole_environment(how: object) -> None:
    with EnvironmentReads() as reads:
        how(os.environ)  # type: ignore[operator]
        os.environ.get("AFTERWARDS")
    assert reads.all_by == {"tests"} and reads.names == {"AFTERWARDS"}


def test_what_the_probe_reads_is_not_the_package_s() -> None:
    ours = {"__name__": "headway.probe.imported", "environ": os.environ}
    with EnvironmentReads() as reads:
        exec("list(environ)", ours)
    assert not reads.all_by


def call(**given: object) -> dict[str, object]:
    pipes = dict.fromkeys(("p2cread", "c2pwrite", "errwrite"), -1)
    return {"close_fds": True, "pass_fds": (), "errpipe_write": 90, "errpipe_read": 91,
            **pipes, **given}  # fmt: skip


def test_descriptors_of_a_child() -> None:
    assert nest._descriptors(call()) == {0: 0, 1: 1, 2: 2}
    found = nest._descriptors(call(c2pwrite=7, errwrite=7, pass_fds=(5, 90)))
    assert found == {0: 0, 1: 7, 2: 7, 5: 5}


def test_what_is_to_be_executed() -> None:
    candidates = [b"/nowhere/python", os.fsencode(sys.executable)]
    assert nest._executable(candidates) == sys.executable
    with pytest.raises(ColdStartRequired):
        nest._executable([b"/nowhere/python"])


def test_ranks_and_helpers_have_no_nest() -> None:
    assert nest.needs_child_forkserver({}, ["python", "a.py"])
    assert not nest.needs_child_forkserver({"RANK": "0"}, ["python", "a.py"])
    assert not nest.needs_child_forkserver({}, ["python", "-c", "...", "--multiprocessing-fork"])


@pytest.mark.parametrize(
    ("shown", "count"), [(None, 2), ("0", 1), ("", 0), ("-1", 0), ("0,1,2", 2), ("GPU-ab", 1)]
)
def test_devices_are_counted_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, count: int
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip=None), cuda=1)
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(_device_count_nvml=lambda: -1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    unasked, cuda = DeviceCountStub((str(tmp_path),)), sys.modules["torch.cuda"]
    unasked.begin()
    assert cuda._device_count_nvml() == count
    unasked.end()
    assert cuda._device_count_nvml() == -1
