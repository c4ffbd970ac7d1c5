"""Stages of a start that run in processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from headway.startup import Stages
from headway.startup.stage_graph import StageError, StageFailed, StageLate
from tests.support import has_code, wait_until

pytestmark = pytest.mark.timeout(60)


def test_a_process_gets_results_and_gives_one() -> None:
    stages = Stages()
    stages.add(lambda rows: list(range(rows)), "rows_of")
    stages.add(lambda rows_of: (sum(rows_of), os.getpid()), "heavy", where="process")
    total, pid = stages.run(rows=5).heavy
    assert total == 10 and pid != os.getpid()
    assert stages.run(rows=3, overlap=False).heavy == (3, os.getpid())  # one by one, in this one


@pytest.mark.parametrize("overlap", [True, False])
def test_a_stage_that_fails_is_named_and_nothing_new_begins(overlap: bool) -> None:
    started: list[str] = []
    stages = Stages()

    @stages.stage(where="process")
    def broken() -> None:
        raise ValueError("no such table")

    stages.add(lambda broken: started.append("after"), "after")
    with pytest.raises(StageFailed) as error:
        stages.run(overlap=overlap)
    assert (error.value.code, error.value.stage) == ("stage-failed", "broken")
    assert "ValueError: no such table" in str(error.value)
    assert not started


def test_a_stage_that_is_late_is_ended() -> None:
    stages = Stages()
    stages.add(lambda: time.sleep(30), "waiting", where="process", deadline=0.2)
    began = time.monotonic()
    with pytest.raises(StageLate) as error:
        stages.run()
    assert error.value.stage == "waiting"
    assert time.monotonic() - began < 20


def test_a_process_that_is_killed() -> None:
    stages = Stages()
    stages.add(lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", where="process")
    with pytest.raises(StageFailed, check=has_code("stage-process-died")) as error:
        stages.run()
    assert error.value.stage == "killed"


def test_what_cannot_leave_a_process() -> None:
    stages = Stages()
    stages.add(lambda: threading.Lock(), "lock", where="process")
    with pytest.raises(StageFailed, check=has_code("stage-result-not-picklable")):
        stages.run()


def test_processes_are_gone_afterwards() -> None:
    stages = Stages()
    stages.add(lambda: os.getpid(), "one", where="process")
    stages.add(lambda one: 1 / 0, "two")
    stages.add(lambda two: None, "never", where="process")
    pids: list[int] = []
    stages.add(lambda one: pids.append(one), "seen")
    with pytest.raises(StageError):
        stages.run()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_ends_with_its_rank(tmp_path: Path) -> None:
    def heavy() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    def killed() -> None:
        wait_until((tmp_path / "pid").exists)
        os.kill(os.getpid(), signal.SIGKILL)

    def rank() -> None:
        stages = Stages()
        stages.add(heavy, where="process")
        stages.add(killed)
        stages.run()

    process = multiprocessing.get_context("fork").Process(target=rank)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    worker = Path("/proc", (tmp_path / "pid").read_text(), "cmdline")
    wait_until(lambda: not _read(worker), 20)


def _read(path: Path) -> bytes:
    """Empty if it does not exist, or the process is dead."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
