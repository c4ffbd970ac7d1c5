"""Snapshots in memory between checkpoints on disk: what is there after a kill, and what is not."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.store.store import Store
from tests.integration.jobs import no_writer_is_left, run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    with no_writer_is_left(tmp_path):
        yield


def steps(folder: Path) -> list[int]:
    return [one.step for one in Store(folder / "store").checkpoints()]


def state(folder: Path, step: int) -> str:
    """Of rank 0 after that step, when it was first made."""
    lines = (folder / "out.0.steps").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{step} "))


@pytest.mark.slow
def test_a_killed_training_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    job = uuid.uuid4().hex
    run(tmp_path, "--disk", "4", "--memory", "1", "--die", "7", job=job, code=-9)
    assert set(steps(tmp_path)) <= {4}
    (again,) = run(tmp_path, "--steps", "8", job=job)
    assert (again["from"], again["source"]) == (7, "memory")
    assert again["restored"] == state(tmp_path, 7)


@pytest.mark.slow
def test_deltas_build_on_what_was_written(tmp_path: Path) -> None:
    run(tmp_path, "--disk", "3", "--memory", "1", "--wait", "--steps", "10")
    found = Store(tmp_path / "store").checkpoints()
    assert [(one.step, one.manifest.kind) for one in found] == [
        (9, "delta"),
        (6, "delta"),
        (3, "full"),
    ]
    (again,) = run(tmp_path, "--steps", "9")
    assert (again["from"], again["source"]) == (9, "step-0000000009")
    assert again["restored"] == state(tmp_path, 9)


@pytest.mark.slow
def test_the_image_that_is_written_is_kept_while_the_other_is_filled(tmp_path: Path) -> None:
    job = uuid.uuid4().hex
    words = ("--disk", "4", "--memory", "1", "--rate", "20000")
    run(tmp_path, *words, "--die", "7", "--filling", job=job, code=-9)
    (again,) = run(tmp_path, "--steps", "4", job=job)
    assert (again["from"], again["source"]) == (4, "memory")
    assert again["restored"] == state(tmp_path, 4)


@pytest.mark.slow
def test_two_ranks_have_one_snapshot_in_common(tmp_path: Path) -> None:
    """The last rank dies while it fills its image, when the other one has it whole already."""
    words = ("--disk", "5", "--memory", "1", "--wait", "--die", "8", "--filling", "--steps", "10")
    recorded = ("run", "-o", "run", "--restarts", "1")
    again = run(tmp_path, *words, ranks=2, headway=recorded)
    assert [(one["from"], one["source"]) for one in again] == [(7, "memory")] * 2
    assert {one["restored"] for one in again} == {state(tmp_path, 7)}
    report = [sys.executable, "-m", "headway", "report", "run"]
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    resumed = [(one["resumed_from"], one["resumed_by"]) for one in ledger["attempts"]]
    assert resumed == [(None, None), (7, "memory")]
    levels = {one["level"]: one["saves"] for one in ledger["checkpoints"]["levels"]}
    assert levels["disk"] >= 1 and levels["memory"] >= 5
    said = subprocess.run(report, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and "memory" in said.stdout, said.stderr
