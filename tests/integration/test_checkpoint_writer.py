"""A rank and its writer, a real process: who may have it, how long it stays, and what it keeps."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.writer import address, client, protocol
from headway.checkpoint.writer.client import WriterClient, WriterFailed, WriterTaken, peek
from headway.checkpoint.writer.process import IDLE_CHECK_S
from tests.support import has_code

pytestmark = pytest.mark.timeout(60)
LONG = 60.0


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a writer; whatever was started for it is gone at the end."""
    monkeypatch.setattr(client, "child_processes", [])  # other tests have started some too
    yield f"headway-test-{secrets.token_hex(8)}"
    for child in client.child_processes:
        child.kill()
        child.wait()


def ended(child: subprocess.Popen[bytes]) -> int:
    return child.wait(timeout=20)


def knock(name: str, *messages: bytes) -> bytes:
    """Somebody who is no rank; what comes back until the writer has enough."""
    with address.connect(name, 20) as end:
        for message in messages:
            end.sendall(message)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # it has not read all of it
            while more := end.recv(1 << 16):
                found += more
        return found


def worded(message: bytes) -> bytes:
    return protocol.HEADER.pack(len(message)) + message


def test_what_is_in_memory_outlives_the_rank(name: str) -> None:
    rank = WriterClient(name, LONG)
    assert rank.hello["images"] == []
    rank.reserve(2, 4096)
    handles = rank.descriptors()
    os.pwrite(handles[1], b"there", 7)
    protocol.close(handles)
    rank.send("layout", id="a", layout={"tensors": []})
    rank.send("filling", image=1, step=12)
    rank.status()  # it has heard all that
    rank.close()

    again = WriterClient(name, LONG)
    assert [image["state"] for image in again.hello["images"]] == ["empty", "filling"]
    assert again.hello["images"][1]["step"] == 12
    assert again.hello["layouts"] == {"a": {"tensors": []}}
    handles = again.descriptors()
    assert os.pread(handles[1], 5, 7) == b"there"
    protocol.close(handles)
    again.close()


def test_one_rank_at_a_time_and_others_may_look(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TAKEN_RETRY_S", 0.05)
    rank = WriterClient(name, LONG)
    rank.reserve(2, 4096)
    with pytest.raises(WriterTaken, check=has_code("writer-taken")):
        WriterClient(name, LONG)
    seen = peek(name)
    assert seen is not None and len(seen[0]["images"]) == len(seen[1]) == 2
    protocol.close(seen[1])
    rank.close()
    other = WriterClient(name, LONG)
    assert other.status()["busy"] == []
    other.close()
    assert peek(f"{name}-none") is None
    assert len(client.child_processes) == 1


def test_strangers_do_not_disturb_it(name: str) -> None:
    rank = WriterClient(name, LONG)
    assert knock(name, b"GET / HTTP/1.1\r\n\r\n") == b""
    assert knock(name, worded(b"[1, 2]")) == b""
    assert knock(name, worded(b'{"op": "end"}')) == b"", "who has not said hello is not heard"
    assert rank.status()["busy"] == []
    for words in ({"op": "dance"}, {"op": "filling", "image": 5, "step": 1}, {"op": "whole"}):
        rank.send(**words)
        with pytest.raises(WriterFailed, check=has_code("writer-silent")):
            rank.status()
        rank.close()
        rank = WriterClient(name, LONG)
    assert rank.status()["busy"] == []
    assert len(client.child_processes) == 1, "it was the same one all the time"
    rank.close()


def test_it_waits_for_a_rank_for_as_long_as_it_was_told(name: str) -> None:
    rank = WriterClient(name, 0.1)
    (child,) = client.child_processes
    time.sleep(0.1 + 1.2 * IDLE_CHECK_S)  # longer than it waits for a rank that is gone
    assert rank.status()["busy"] == []
    rank.close()
    assert ended(child) == 0
    assert peek(name) is None


def test_dismissed_it_goes_once_the_rank_has_gone(name: str) -> None:
    rank = WriterClient(name, LONG)
    (child,) = client.child_processes
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)  # of a terminal: not meant for it
    time.sleep(1.2 * IDLE_CHECK_S)  # it has looked whether it is still wanted
    assert rank.status()["busy"] == []
    rank.close()
    assert ended(child) == 0


def test_a_signal_to_all_of_a_job_is_not_meant_for_it(name: str) -> None:
    rank = WriterClient(name, LONG)
    for number in (signal.SIGINT, signal.SIGUSR1):
        client.child_processes[0].send_signal(number)
    rank.status()
    assert client.child_processes[0].poll() is None
    rank.close()


def test_the_name_is_free_once_it_has_ended(name: str) -> None:
    for number in range(1, 4):
        rank = WriterClient(name, LONG)
        assert rank.hello["images"] == [], "another one"
        rank.reserve(1, 4096)
        assert rank.end()["busy"] == []
        rank.close()
        assert len(client.child_processes) == number
    assert {ended(child) for child in client.child_processes} == {0}


def test_one_that_is_killed_is_replaced(name: str) -> None:
    rank = WriterClient(name, LONG)
    rank.reserve(1, 4096)
    before = len(os.listdir("/proc/self/fd"))
    client.child_processes[0].kill()
    with pytest.raises(WriterFailed, check=has_code("writer-silent")):
        rank.reserve(1, 8192)
    rank.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2, "its image and its end, each once"
    again = WriterClient(name, LONG)
    assert again.status()["busy"] == [] and len(client.child_processes) == 2
    again.close()


@pytest.mark.parametrize(
    ("python", "code", "fields"),
    [
        ("/bin/false", "writer-ended", {"status": 1}),
        ("/none/python", "writer-not-started", {}),
    ],
)
def test_none_can_be_started(
    python: str, code: str, fields: dict[str, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", python)
    with pytest.raises(WriterFailed, check=has_code(code)) as raised:
        WriterClient(name, LONG)
    assert raised.value.fields == fields


@pytest.mark.filterwarnings("error")
def test_a_rank_that_forgets_it_leaves_nothing_open(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rank = WriterClient(name, LONG)
    rank.reserve(2, 4096)
    del rank
    gc.collect()  # no ResourceWarning
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_words_of_one_that_fails_are_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no torch here >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(WriterFailed, check=has_code("writer-ended")) as raised:
        WriterClient(name, LONG)
    assert "no torch here" in str(raised.value)
