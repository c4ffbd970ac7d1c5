"""What `headway classify` takes for a log."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest

from tests.support import cli, code_of

NOISE = random.Random(7).randbytes(200_000) + b"\n^C\nKeyboardInterrupt\n"


@pytest.mark.parametrize("packed", [False, True])
def test_random_bytes_are_no_log(tmp_path: Path, packed: bool) -> None:
    (tmp_path / "x.log").write_bytes(gzip.compress(NOISE) if packed else NOISE)
    done = cli("classify", "x.log", cwd=tmp_path)
    assert (done.returncode, code_of(done.stderr.strip())) == (2, "log-not-text")
    assert done.stdout == ""


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\0" * 9000 + b"\nKeyboardInterrupt\n",
        "KeyboardInterrupt\n".encode("utf-16"),
        b"\x1b[31mKeyboardInterrupt\x1b[0m\r\n",
        "Größe: KeyboardInterrupt ändert\n".encode("latin-1"),
        b"\x89KeyboardInterrupt" + b" loss 1.5\n" * 50,
    ],
    ids=["empty", "zeros", "utf-16", "colors", "latin-1", "one odd byte"],
)
def test_logs_with_odd_bytes_are_read(
    tmp_path: Path, log: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.log").write_bytes(log)
    done = cli("classify", "x.log", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("user_cancel") is bool(log)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(log))))
    assert cli("classify", "-", cwd=tmp_path).returncode == 0
