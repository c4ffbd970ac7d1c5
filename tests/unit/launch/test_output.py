"""What the job says on standard error is passed on, and kept."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from headway.launch.output import KEPT, Output


def test_a_pipe_is_passed_through() -> None:
    reader, writer = os.pipe()
    output = Output(writer, through_pipe=True)
    assert output.stderr is not None
    child = subprocess.Popen(["sh", "-c", "echo one >&2; echo two >&2"], stderr=output.stderr)
    output.started()
    child.wait()
    output.finish()
    os.close(writer)
    with os.fdopen(reader, "rb") as passed:
        assert passed.read() == b"one\ntwo\n"
    assert output.text().read() == b"one\ntwo\n"


def test_a_pipe_that_nobody_reads_does_not_stop_the_job() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = Output(writer, through_pipe=True)
    child = subprocess.Popen(
        ["sh", "-c", "head -c 200000 /dev/zero >&2; echo end >&2"], stderr=output.stderr
    )
    output.started()
    assert child.wait(20) == 0
    output.finish()
    os.close(writer)
    assert output.text().read().endswith(b"end\n")


def test_only_the_end_of_much_is_kept() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = Output(writer, through_pipe=True)
    child = subprocess.Popen(
        ["sh", "-c", f"head -c {3 * KEPT} /dev/zero >&2; echo end >&2"], stderr=output.stderr
    )
    output.started()
    child.wait()
    output.finish(20)
    os.close(writer)
    text = output.text().read()
    assert KEPT <= len(text) < KEPT + 65536
    assert text.endswith(b"end\n")


def test_a_file_is_read_again_from_where_the_attempt_began(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"before\n")
        file.flush()
        output = Output(file.fileno(), through_pipe=True)
        assert output.stderr is None
        file.write(b"after\n")
        file.flush()
        with output.text() as text:
            assert text.read() == b"after\n"


def test_without_supervision_a_pipe_is_left_alone() -> None:
    reader, writer = os.pipe()
    output = Output(writer)
    assert output.stderr is None
    assert output.text().read() == b""
    os.close(reader)
    os.close(writer)
