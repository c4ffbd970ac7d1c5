"""Journals of processes that are killed, and on a disk that is full."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.journal import pulse, reader
from headway.journal.writer import Writer


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
    journal_writer = Writer(str(path), pid=7)
    for number in range(1000):
        journal_writer.write({"ev": "x", "t": number, "text": "x" * 100})
        journal_writer.cells[pulse.STEPS] = number
    assert journal_writer.lost > 900
    assert journal_writer.fault == "No space left on device"
    page = pulse.read(str(path.with_suffix(".pulse")))
    assert page is not None and page.steps == 999
    late = Writer(str(tiny / "late.jsonl"), pid=7)  # not even its page has room
    late.cells[pulse.STEPS] = 1
    late.write({"ev": "x", "t": 1})
    assert late.lost == 1
    late.close()
    journal_writer.close()


CHILD = """
import os, sys
from headway.journal import pulse, writer
journal = writer.Writer(sys.argv[1], os.getpid())
journal.write(writer.head("process", rank=0))
step = 0
while True:
    step += 1
    journal.cells[pulse.LAST_STEP] = writer.now()
    journal.cells[pulse.STEPS] = step
    os.write(1, b"s")
    journal.write({"ev": "event", "t": writer.now(), "number": step})
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
        output = child.stdout.read(instants.randrange(1, 3000))
        child.kill()
        output += child.stdout.read()
        child.stdout.close()
        child.wait()
        steps, events = output.count(b"s"), output.count(b"e")
        page = pulse.read(str(path.with_suffix(".pulse")))
        journal = reader.parse(path.read_bytes(), "x", page)
        assert journal is not None and page is not None
        assert page.steps in (steps, steps + 1)  # one more, if it died before it could tell
        numbers = [event["number"] for event in journal.events]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) in (events, events + 1)
        assert journal.damaged == 0
        assert journal.windows.last[-1] == page.steps
