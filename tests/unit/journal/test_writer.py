from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.journal import pulse, reader, writer
from headway.journal.writer import Writer
from headway.storage import process_identity


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


def test_a_closed_writer_holds_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = Writer(str(tmp_path / "x.jsonl"), pid=7)
    made.write({"ev": "a", "t": 5})
    assert len(os.listdir("/proc/self/fd")) > before
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_head_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    made = Writer(str(path), pid=7)
    made.write(writer.head("process", launch="L0", rank=1, world=2))
    found = reader.parse(path.read_bytes(), "x")
    assert found is not None
    assert (found.pid, found.rank, found.launch) == (os.getpid(), 1, "L0")
    assert 0 < found.begin <= found.opened
    assert found.boot == process_identity.boot_id()


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


def parsed(path: Path) -> reader.Journal:
    found = reader.parse(path.read_bytes(), "x")
    assert found is not None
    return found


def test_a_file_that_takes_the_place_of_the_first_has_a_head_too(tmp_path: Path) -> None:
    """A job may close every descriptor, and the folder may be made again."""
    path = tmp_path / "x.jsonl"
    made = Writer(str(path), pid=7)
    made.write(writer.head("process", rank=3))
    made.write({"ev": "a", "t": 1})
    for number in range(3):
        os.close(made._fd)
        if number:
            path.unlink()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            made.write({"ev": "b", "t": 2})
        assert len(os.listdir("/proc/self/fd")) == before + 1
    found = parsed(path)
    assert found.rank == 3
    assert [event["ev"] for event in found.events] == ["b"] * 5
    assert (made.lost, found.damaged) == (0, 0)
    made.close()


@pytest.mark.parametrize("room", [0, 9])
def test_a_head_that_did_not_fit_is_written_later(tmp_path: Path, disk: Disk, room: int) -> None:
    path = tmp_path / "x.jsonl"
    made = Writer(str(path), pid=7)
    disk.room = room
    made.write(writer.head("process", rank=3))
    made.write({"ev": "a", "t": 1})
    disk.room = None
    made.write({"ev": "b", "t": 2})
    found = parsed(path)
    assert found.rank == 3
    assert [event["ev"] for event in found.events] == ["lost", "b"]
    assert found.damaged == (room > 0)


class Silent:
    def __str__(self) -> str:
        raise RuntimeError


def test_what_json_cannot_hold_costs_no_line(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, {(1, 2): 3}, Silent(), {1}, float("nan"), b"x", "\udcff"):
        line = writer.encode({"ev": "a", "t": 5, "value": value, "kept": 7})
        record = json.loads(line)
        assert (record["ev"], record["t"], record["kept"]) == ("a", 5, 7)
        assert line.count(b"\n") == 1


def test_while_the_disk_stays_full_every_line_counts(tmp_path: Path, disk: Disk) -> None:
    made = Writer(str(tmp_path / "x.jsonl"), pid=7)
    disk.room = 0
    for number in range(5):
        made.write({"ev": "x", "t": number})
    assert made.lost == 5
