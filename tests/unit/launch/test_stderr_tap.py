"""The standard error of the job is copied and captured."""

from __future__ import annotations

import os
from pathlib import Path

from headway.launch.stderr_tap import TAIL_BYTES, StderrTap


def write(output: StderrTap, *texts: bytes) -> None:
    """Write as the command does, on its own end of the pipe, until it ends."""
    assert output.stderr is not None
    with os.fdopen(os.dup(output.stderr), "wb") as child:
        output.child_started()
        for text in texts:
            child.write(text)
            child.flush()


def test_a_pipe_is_passed_through() -> None:
    reader, writer = os.pipe()
    output = StderrTap(writer, through_pipe=True)
    write(output, b"one\n", b"two\n")
    output.drain(20)
    os.close(writer)
    with os.fdopen(reader, "rb") as passed:
        assert passed.read() == b"one\ntwo\n"
    assert output.text().read() == b"one\ntwo\n"


def test_what_is_over_holds_no_descriptor() -> None:
    """A launcher that restarts a job for months has many of them."""
    reader, writer = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        output = StderrTap(writer, through_pipe=True)
        write(output, b"one\n")
        output.drain(20)
        output.start_relay()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(writer)
    os.close(reader)


def test_a_pipe_that_nobody_reads_does_not_stop_the_job() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = StderrTap(writer, through_pipe=True)
    write(output, bytes(200_000), b"end\n")
    output.drain(20)
    os.close(writer)
    assert output.text().read().endswith(b"end\n")


def test_only_the_end_of_much_is_kept() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = StderrTap(writer, through_pipe=True)
    write(output, bytes(3 * TAIL_BYTES), b"end\n")
    output.drain(20)
    os.close(writer)
    text = output.text().read()
    assert TAIL_BYTES <= len(text) < TAIL_BYTES + 65536
    assert text.endswith(b"end\n")


def test_a_file_is_read_again_from_where_the_attempt_began(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"before\n")
        file.flush()
        output = StderrTap(file.fileno(), through_pipe=True)
        assert output.stderr is None
        file.write(b"after\n")
        file.flush()
        with output.text() as text:
            assert text.read() == b"after\n"


def test_without_supervision_a_pipe_is_left_alone() -> None:
    reader, writer = os.pipe()
    output = StderrTap(writer)
    assert output.stderr is None
    assert output.text().read() == b""
    os.close(reader)
    os.close(writer)
