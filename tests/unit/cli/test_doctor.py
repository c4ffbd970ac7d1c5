"""`headway doctor` where torch is missing, or what it is given is no Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headway.cli import main


def test_it_says_what_is_missing_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "headway.cli.doctor_job", raising=False)
    assert main(["doctor", "--json", "--", "false"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert [check["good"] for check in checks if check["code"] == "job-runs"] == [False]


@pytest.mark.parametrize("program", ["true", "/bin/ls", "echo"])
def test_what_runs_no_python_is_not_taken_for_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json", "--", program, "--token=hunter2correct"]) == 1
    text = capsys.readouterr().out
    (check,) = [check for check in json.loads(text) if check["code"] == "job-runs"]
    assert not check["good"] and "hunter2" not in text
