"""Trainings that are told that they will be ended: they save in time, all ranks at one step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.store import Store
from headway.eviction_cost import CostReport
from headway.run import load
from headway.schedule import cost_report
from headway.schedule.cost import from_ledger
from tests.integration.jobs import no_writer_is_left, start, told, wait_for
from tests.support import code_of, wait_until

pytestmark = pytest.mark.timeout(120)
WORDS = ("--steps", "4000", "--pause", "0.02", "--interval", "600", "--ready", "ready")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    with no_writer_is_left(tmp_path):
        yield


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    return output


def price_of(run: Path) -> CostReport:
    found = cost_report.read_cost_report(run, time.time())
    assert found is not None
    return found


def wait_for_step(folder: Path, step: int) -> None:
    """Of rank 0."""
    path = folder / "out.0.steps"
    wait_until(lambda: len(path.read_text().splitlines()) >= step, every=0.01)


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
    last = [note for note in ledger["notes"] if code_of(note) == "last-save"]
    assert last and all(str(first["step"]) in note for note in last)
    (notice,) = ledger["notices"]
    assert (notice["answer"], notice["step"]) == ("saved", first["step"])
    assert notice["saved_steps"] == first["step"] - 15  # the save that `--ready` waits for
    paused = 0.02 * notice["saved_steps"]
    assert paused <= notice["saved_s"] <= ledger["buckets"]["train.effective"]
    assert notice["saved_accelerator_s"] == 2 * notice["saved_s"]
    assert notice["lost_s"] is None  # nobody has trained again


@pytest.mark.slow
def test_the_next_life_knows_what_was_saved_and_that_it_was_preempted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recorded: dict[str, Any] = {"job": "4711", "headway": ("run", "-o", "run", "--no-report")}
    process = start(tmp_path, *WORDS, "--grace", "20", **recorded)
    wait_for(tmp_path / "ready.0")
    os.kill(process.pid, signal.SIGUSR1)  # as `headway schedule slurm` does
    output = ended(process)
    assert process.returncode == 0, output
    (first,) = told(tmp_path)
    assert price_of(run).preemptions == 0

    often = ("--interval", "1", "--steps", str(first["step"] + 200))
    process = start(tmp_path, *WORDS, "--grace", "20", *often, **recorded)
    output = ended(process)
    assert process.returncode == 0, output
    assert told(tmp_path)[0]["from"] == first["step"]
    assert price_of(run).preemptions == 1
    ledger = load(run).ledger
    assert [one.outcome for one in ledger.attempts] == ["preempted", "completed"]
    assert from_ledger(ledger).preemptions == 1
    (notice,) = ledger.notices
    assert (notice.response, notice.saved_steps) == ("saved", first["step"] - 15)
    assert (notice.lost, notice.lost_steps) == (0, 0)


@pytest.mark.slow
def test_a_notice_that_nobody_answers_is_all_lost(tmp_path: Path) -> None:
    recorded: dict[str, Any] = {"job": "4711", "headway": ("run", "-o", "run", "--no-report")}
    process = start(tmp_path, *WORDS, **recorded)  # no grace: nobody listens
    wait_for(tmp_path / "ready.0")
    wait_for_step(tmp_path, 40)
    os.kill(process.pid, signal.SIGTERM)
    ended(process)
    made = len((tmp_path / "out.0.steps").read_text().splitlines())
    process = start(tmp_path, *WORDS, "--steps", "30", **recorded)
    output = ended(process)
    assert process.returncode == 0, output
    ledger = load(tmp_path / "run").ledger
    (notice,) = ledger.notices
    assert (notice.response, notice.saved, notice.saved_steps) == ("none", 0, 0)
    assert notice.lost == ledger.buckets["failure.lost_training"] > 0
    assert notice.lost_steps in (
        made - 15,
        made - 14,
    )  # a step is counted before it is written down


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
    assert process.returncode == 0 and "[no-last-save]" in output
    (one,) = told(tmp_path)
    assert one["preempted"]
    assert [one.step for one in Store(tmp_path / "store").checkpoints()] == [15]
