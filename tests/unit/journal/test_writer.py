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
    journal_writer = Writer(str(path), pid=7)
    journal_writer.write({"ev": "a", "t": 5})
    journal_writer.write({"ev": "b", "t": 3, "odd": {1}})
    assert lines(path) == [{"ev": "a", "t": 5}, {"ev": "b", "t": 3, "odd": "{1}"}]
    page = pulse.read(str(path.with_suffix(".pulse")))
    assert page is not None and 5 < page.alive <= writer.now()
    assert journal_writer.file_clock() == path.stat().st_mtime_ns
    journal_writer.close()
    assert journal_writer.file_clock() is None


def test_a_closed_writer_holds_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    journal_writer = Writer(str(tmp_path / "x.jsonl"), pid=7)
    journal_writer.write({"ev": "a", "t": 5})
    assert len(os.listdir("/proc/self/fd")) > before
    journal_writer.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_head_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    journal_writer = Writer(str(path), pid=7)
    journal_writer.write(writer.head("process", launch="L0", rank=1, world=2))
    journal = reader.parse(path.read_bytes(), "x")
    assert journal is not None
    assert (journal.pid, journal.rank, journal.launch) == (os.getpid(), 1, "L0")
    assert 0 < journal.begin <= journal.opened
    assert journal.boot == process_identity.boot_id()


def test_where_nothing_can_be_written_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal_writer = Writer(str(tmp_path / "file" / "x.jsonl"), pid=7)
    journal_writer.write({"ev": "a", "t": 5})
    journal_writer.cells[pulse.STEPS] = 1
    assert (journal_writer.lost, journal_writer.fault) == (1, "File exists")
    journal_writer.close()


class Disk:
    """`os.write` on a disk that can be full, or accept only part of a line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.write = os.write
        monkeypatch.setattr(writer.os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room is None:
            return self.write(fd, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.write(fd, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("room", [0, 9])
def test_a_full_disk_loses_lines_and_says_so_later(tmp_path: Path, disk: Disk, room: int) -> None:
    path = tmp_path / "x.jsonl"
    journal_writer = Writer(str(path), pid=7)
    journal_writer.write({"ev": "before", "t": 1})
    disk.room = room
    journal_writer.write({"ev": "lost", "t": 2, "text": "x" * 50})
    journal_writer.write({"ev": "lost", "t": 3})
    assert journal_writer.lost == 2
    journal_writer.cells[pulse.STEPS] = 9  # the page is already allocated
    disk.room = None
    journal_writer.write({"ev": "after", "t": 4})
    head = {"ev": "head", "t": 0, "wall": 0, "begin": 0, "pid": 1}
    first = writer.encode({**head, "role": "process", "host": "h", "boot": "b"})
    journal = reader.parse(first + path.read_bytes(), "x")
    assert journal is not None
    assert [event["ev"] for event in journal.events] == ["before", "lost", "after"]
    assert journal.events[1]["lines"] == 2
    assert journal.events[1]["why"] == "No space left on device"
    assert journal.damaged == (room > 0)  # an incomplete line
    assert journal_writer.lost == 0


def parsed(path: Path) -> reader.Journal:
    journal = reader.parse(path.read_bytes(), "x")
    assert journal is not None
    return journal


def test_a_file_that_takes_the_place_of_the_first_has_a_head_too(tmp_path: Path) -> None:
    """A job may close all descriptors, and the folder may be created again."""
    path = tmp_path / "x.jsonl"
    journal_writer = Writer(str(path), pid=7)
    journal_writer.write(writer.head("process", rank=3))
    journal_writer.write({"ev": "a", "t": 1})
    for number in range(3):
        os.close(journal_writer._fd)
        if number:
            path.unlink()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            journal_writer.write({"ev": "b", "t": 2})
        assert len(os.listdir("/proc/self/fd")) == before + 1
    journal = parsed(path)
    assert journal.rank == 3
    assert [event["ev"] for event in journal.events] == ["b"] * 5
    assert (journal_writer.lost, journal.damaged) == (0, 0)
    journal_writer.close()


@pytest.mark.parametrize("room", [0, 9])
def test_a_head_that_did_not_fit_is_written_later(tmp_path: Path, disk: Disk, room: int) -> None:
    path = tmp_path / "x.jsonl"
    journal_writer = Writer(str(path), pid=7)
    disk.room = room
    journal_writer.write(writer.head("process", rank=3))
    journal_writer.write({"ev": "a", "t": 1})
    disk.room = None
    journal_writer.write({"ev": "b", "t": 2})
    journal = parsed(path)
    assert journal.rank == 3
    assert [event["ev"] for event in journal.events] == ["lost", "b"]
    assert journal.damaged == (room > 0)


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
    journal_writer = Writer(str(tmp_path / "x.jsonl"), pid=7)
    disk.room = 0
    for number in range(5):
        journal_writer.write({"ev": "x", "t": number})
    assert journal_writer.lost == 5
