"""One attempt of the command."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headway import probe
from headway.launch import attempt, child_process
from headway.launch.attempt import Attempt, environment, uses_elastic_restarts
from headway.launch.child_process import UNKNOWN_STATUS, ChildProcess
from headway.launch.run_folder import RunFolder
from tests.support import NO_PROCESS


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("torchrun --max-restarts 3 train.py", True),
        ("torchrun --max-restarts=3 train.py", True),
        ("torchrun --max_restarts 3 train.py", True),
        ("torchrun --max-restarts 0 train.py", False),
        ("torchrun --max-restarts", False),
        ("torchrun train.py", False),
    ],
)
def test_torchruns_own_restarts_are_seen(command: str, does: bool) -> None:
    assert uses_elastic_restarts(command.split()) is does


@pytest.mark.parametrize("text", ["9" * 400, "", "soon", "1.5.2", "-1"])
def test_times_of_a_scheduler_that_are_none(text: str) -> None:
    env = {"HEADWAY_ALLOCATED_AT": text, "SLURM_JOB_START_TIME": "2"}
    assert attempt._scheduler_times(env) == {"allocated": 2_000_000_000}


def test_a_process_that_cannot_be_killed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State D: SIGKILL has no effect until a device or a file system answers."""
    monkeypatch.setattr(attempt, "KILLED_S", 0.0)
    monkeypatch.setattr(ChildProcess, "poll", lambda child: None)
    target = RunFolder(run="r", folder=tmp_path, url=None, launch="L", index=0)
    ended = Attempt(target, 0, supervised=True)
    assert ended._end_job(ChildProcess(NO_PROCESS, ["train"])) == -signal.SIGKILL


def test_an_exit_status_that_was_taken_is_no_success() -> None:
    child = child_process.start(["true"], os.environ)
    os.waitpid(child.pid, 0)
    assert child.poll() == UNKNOWN_STATUS


def test_what_a_launcher_further_out_says_is_left_out(tmp_path: Path) -> None:
    target = RunFolder(run="r", folder=tmp_path, url=None, launch="own", index=0)
    outer = dict.fromkeys(probe.INTERNAL_ENV, "outer")
    env = environment(target, "own", {**outer, "HOME": "/h", "HEADWAY_ASYNC_SAVE": "1"})
    assert {env.get(name) for name in probe.INTERNAL_ENV} == {
        None,
        "own",
        str(tmp_path / "journal"),
    }
    assert (env["HOME"], env["HEADWAY_ASYNC_SAVE"]) == ("/h", "1")  # set by the user
