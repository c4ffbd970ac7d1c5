"""Trainings that are told that they will be ended: they save in time, all ranks at one step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.store.read import Store
from tests.integration.jobs import no_writer_is_left, start, told, wait_for

pytestmark = pytest.mark.timeout(120)
WORDS = ("--steps", "4000", "--pause", "0.02", "--interval", "600", "--ready", "ready")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    with no_writer_is_left(tmp_path):
        yield


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    return output


def test_a_process_saves_and_leaves_its_loop(tmp_path: Path) -> None:
    process = start(tmp_path, *WORDS, "--grace", "20")
    wait_for(tmp_path / "ready.0")
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    assert process.returncode == 0, output
    (one,) = told(tmp_path)
    assert one["preempted"] and 15 < one["step"] < 4000
    assert Store(tmp_path / "store").checkpoints()[0].step == one["step"]


@pytest.mark.slow
def test_torchrun_passes_it_on_and_all_ranks_save_at_one_step(tmp_path: Path) -> None:
    recorded = ("run", "-o", "run", "--no-report")
    words = (*WORDS, "--memory-interval", "0.1", "--grace", "20")
    process = start(tmp_path, *words, ranks=2, headway=recorded)
    wait_for(tmp_path / "ready.0", tmp_path / "ready.1")
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    first, second = told(tmp_path, 2)
    assert first["preempted"] and second["preempted"], output
    assert first["step"] == second["step"] and first["state"] == second["state"]
    assert first["saves"] == second["saves"] and "memory" in dict(first["saves"]).values()
    newest = Store(tmp_path / "store").checkpoints()[0]
    assert (newest.step, newest.manifest.world) == (first["step"], 2)
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert [one["outcome"] for one in ledger["attempts"]] == ["preempted"]
    last = f"a last save of step {first['step']}"
    assert any(last in note for note in ledger["notes"])


@pytest.mark.slow
def test_workers_that_stay_are_ended_by_their_rank(tmp_path: Path) -> None:
    process = start(tmp_path, *WORDS, "--grace", "20", "--workers", "1")
    wait_for(tmp_path / "ready.0")
    os.killpg(process.pid, signal.SIGTERM)  # as torchrun does
    output = ended(process)
    assert process.returncode == 0, output
    assert told(tmp_path)[0]["preempted"]


@pytest.mark.slow
def test_one_rank_hears_it_for_all(tmp_path: Path) -> None:
    process = start(tmp_path, *WORDS, "--grace", "20", ranks=2)
    wait_for(tmp_path / "ready.0", tmp_path / "ready.1")
    os.kill(int((tmp_path / "ready.1").read_text()), signal.SIGUSR1)
    output = ended(process)
    assert process.returncode == 0, output
    first, second = told(tmp_path, 2)
    assert first["preempted"] and first["step"] == second["step"]


@pytest.mark.slow
def test_a_save_that_would_not_be_done_in_time_is_skipped(tmp_path: Path) -> None:
    process = start(tmp_path, *WORDS, "--grace", "1.5", "--rate", "150000")
    wait_for(tmp_path / "ready.0")
    os.kill(process.pid, signal.SIGTERM)
    output = ended(process)
    assert process.returncode == 0 and "no last save of step" in output
    (one,) = told(tmp_path)
    assert one["preempted"]
    assert [one.step for one in Store(tmp_path / "store").checkpoints()] == [15]
