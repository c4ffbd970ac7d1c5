"""What every command makes of errors."""

from __future__ import annotations

import io
import os
import socket
import sys
from pathlib import Path

import pytest

from headway.cli import main
from tests.journals.recorded import unpack
from tests.support import cli, code_of


@pytest.mark.parametrize("verb", ["report", "advise", "recompiles", "classify", "plan --from"])
def test_a_path_that_cannot_be_is_one_sentence(tmp_path: Path, verb: str) -> None:
    done = cli(*verb.split(), "x" * 300, cwd=tmp_path)
    assert (done.returncode, code_of(done.stderr)) == (2, "path-unusable")
    assert done.stderr.count("\n") == 1


def test_a_fault_of_headway_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError("what no path caused")

    monkeypatch.setattr("headway.cli.settings.run_config", fail)
    done = cli("config", cwd=tmp_path)
    assert (done.returncode, code_of(done.stderr)) == (70, "internal-fault")


@pytest.mark.parametrize("words", [("report",), ("report", "--json"), ("export", "csv")])
def test_an_output_that_nobody_reads_is_no_error(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `headway report RUN | head`, or with standard output closed."""
    run = str(unpack("plain", tmp_path))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert main([*words, run]) == 0
    monkeypatch.setattr("sys.stdout", None)
    assert main([*words, run]) == 0
    sys.stdout.close()  # that of main


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(unpack("plain", tmp_path))
    for words in (["report", run], ["config"]):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert main(words) == 70
        assert code_of(capsys.readouterr().err) == "output-unwritable"


def test_a_terminal_without_the_letters_gets_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    (tmp_path / "größe.log").write_text("all is well\n")
    monkeypatch.setattr("sys.stdout", out)
    assert main(["classify", str(tmp_path / "größe.log")]) == 0
    out.flush()
    assert b"gr??e.log" in out.buffer.getvalue()


def test_classify_does_not_read_devices(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("/dev/zero", "/dev/full", str(tmp_path / "socket")):
            done = cli("classify", name, cwd=tmp_path)
            assert (done.returncode, code_of(done.stderr)) == (2, "log-not-text")
