from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.journal import pulse, reader, writer
from headway.journal.writer import Writer


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line]


def test_every_event_is_a_line_and_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.jsonl"
    made = Writer(str(path), pid=7)
    made.write({"ev": "a", "t": 5})
    made.write({"ev": "b", "t": 3, "odd": {1}})
    assert lines(path) == [{"ev": "a", "t": 5}, {"ev": "b", "t": 3, "odd": "{1}"}]
    page = pulse.read(str(path.with_suffix(".pulse")))
    assert page is not None and 5 < page.alive <= writer.now()
    assert made.file_clock() == path.stat().st_mtime_ns
    made.close()
    assert made.file_clock() is None


def test_the_head_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    made = Writer(str(path), pid=7)
    made.write(writer.head("process", launch="L0", rank=1, world=2))
    found = reader.parse(path.read_bytes(), "x")
    assert found is not None
    assert (found.pid, found.rank, found.launch) == (os.getpid(), 1, "L0")
    assert 0 < found.begin <= found.opened
    assert found.boot == writer.boot_id()


def test_where_nothing_can_be_written_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Writer(str(tmp_path / "file" / "x.jsonl"), pid=7)
    made.write({"ev": "a", "t": 5})
    made.cells[pulse.STEPS] = 1
    assert (made.lost, made.fault) == (1, "File exists")
    made.close()


class Disk:
    """`os.write` on a disk that can be full, or take only half a line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.write = os.write
        monkeypatch.setattr(writer.os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self.write(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.write(fd, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("room", [0, 9])
def test_a_full_disk_loses_lines_and_says_so_later(tmp_path: Path, disk: Disk, room: int) -> None:
    path = tmp_path / "x.jsonl"
    made = Writer(str(path), pid=7)
    made.write({"ev": "before", "t": 1})
    disk.room = room
    made.write({"ev": "lost", "t": 2, "text": "x" * 50})
    made.write({"ev": "lost", "t": 3})
    assert made.lost == 2
    made.cells[pulse.STEPS] = 9  # the page has its room already
    disk.room = None
    made.write({"ev": "after", "t": 4})
    head = {"ev": "head", "t": 0, "wall": 0, "begin": 0, "pid": 1}
    first = writer.encode({**head, "role": "process", "host": "h", "boot": "b"})
    found = reader.parse(first + path.read_bytes(), "x")
    assert found is not None
    assert [event["ev"] for event in found.events] == ["before", "lost", "after"]
    assert found.events[1]["lines"] == 2
    assert found.events[1]["why"] == "No space left on device"
    assert found.damaged == (room > 0)  # half a line, on a line of its own
    assert made.lost == 0


def test_while_the_disk_stays_full_every_line_counts(tmp_path: Path, disk: Disk) -> None:
    made = Writer(str(tmp_path / "x.jsonl"), pid=7)
    disk.room = 0
    for number in range(5):
        made.write({"ev": "x", "t": number})
    assert made.lost == 5


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of three pages."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    options = ["-t", "tmpfs", "-o", "size=12k", "tmpfs", str(tmp_path)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_on_a_disk_that_is_really_full(tiny: Path) -> None:
    path = tiny / "x.jsonl"
    made = Writer(str(path), pid=7)
    for number in range(1000):
        made.write({"ev": "x", "t": number, "text": "x" * 100})
        made.cells[pulse.STEPS] = number
    assert made.lost > 900
    assert made.fault == "No space left on device"
    page = pulse.read(str(path.with_suffix(".pulse")))
    assert page is not None and page.steps == 999
    late = Writer(str(tiny / "late.jsonl"), pid=7)  # not even its page has room
    late.cells[pulse.STEPS] = 1
    late.write({"ev": "x", "t": 1})
    assert late.lost == 1
    late.close()
    made.close()


CHILD = """
import os, sys
from headway.journal import pulse, writer
made = writer.Writer(sys.argv[1], os.getpid())
made.write(writer.head("process", rank=0))
step = 0
while True:
    step += 1
    made.cells[pulse.LAST_STEP] = writer.now()
    made.cells[pulse.STEPS] = step
    os.write(1, b"s")
    made.write({"ev": "event", "t": writer.now(), "number": step})
    os.write(1, b"e")
"""


def test_a_kill_at_any_instant_loses_no_event_and_at_most_the_step_in_flight(
    tmp_path: Path,
) -> None:
    instants = random.Random(20)
    for number in range(12):
        path = tmp_path / f"{number}.jsonl"
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        told = child.stdout.read(instants.randrange(1, 3000))
        child.kill()
        told += child.stdout.read()
        child.stdout.close()
        child.wait()
        steps, events = told.count(b"s"), told.count(b"e")
        page = pulse.read(str(path.with_suffix(".pulse")))
        found = reader.parse(path.read_bytes(), "x", page)
        assert found is not None and page is not None
        assert page.steps in (steps, steps + 1)  # one more, if it died before it could tell
        numbers = [event["number"] for event in found.events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) in (events, events + 1)
        assert found.damaged == 0
        assert found.windows.last[-1] == page.steps
