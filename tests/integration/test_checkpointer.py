"""Trainings that are killed and go on, in real processes: bit-equal to those that were not."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.layout import delta_tables
from headway.checkpoint.store.store import Store
from tests.integration.jobs import launched, writers
from tests.support import wait_until

pytestmark = pytest.mark.timeout(150)
JOB = Path(__file__).parent / "checkpointed" / "train.py"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Whatever was killed: in the end no writer of this test is there any more."""
    yield
    try:
        wait_until(lambda: not writers(tmp_path), 15, every=0.1)
    finally:
        for pid in writers(tmp_path):
            os.kill(pid, 15)


def run(
    folder: Path,
    *words: str,
    ranks: int = 1,
    job: str = "",
    code: int | None = 0,
    out: str = "out",
    headway: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """One training; what each rank has told."""
    launcher, env = launched(ranks, job, headway)
    command = [*launcher, str(JOB), str(folder / "store"), str(folder / out), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    if code is not None:
        assert done.returncode == code, done.stderr[-3000:]
    told = [folder / f"{out}.{rank}" for rank in range(ranks)]
    return [json.loads(path.read_text()) for path in told if path.exists()]


def whole(folder: Path, *words: str, ranks: int = 1) -> list[dict[str, Any]]:
    """The same training without an interruption, and without checkpoints."""
    (folder / "whole").mkdir()
    return run(folder / "whole", *words, "--every", "0", ranks=ranks)


def test_a_killed_training_goes_on_from_memory(tmp_path: Path) -> None:
    """And its writer finishes what the dead has begun."""
    job = uuid.uuid4().hex
    run(tmp_path, "--kill-after", "8", job=job, code=-9)
    latest = tmp_path / "store" / "latest"
    wait_until(lambda: latest.exists() and latest.read_text() == "step-0000000006\n")
    (again,) = run(tmp_path, job=job)
    assert (again["from"], again["source"]) == (6, "memory")
    (right,) = whole(tmp_path)
    assert (again["state"], again["position"]) == (right["state"], right["position"])


@pytest.mark.slow
def test_another_start_goes_on_from_disk(tmp_path: Path) -> None:
    run(tmp_path, "--kill-after", "8", "--wait", code=-9)
    (again,) = run(tmp_path)
    assert (again["from"], again["source"]) == (6, "step-0000000006")
    assert again["state"] == whole(tmp_path)[0]["state"]


@pytest.mark.slow
def test_a_writer_that_nobody_comes_back_to_ends(tmp_path: Path) -> None:
    run(tmp_path, "--kill-after", "8", "--linger", "1", code=-9)
    wait_until(lambda: not writers(tmp_path), every=0.1)
    assert (tmp_path / "store" / "latest").read_text() == "step-0000000006\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_go_on_from_disk(kind: str, tmp_path: Path) -> None:
    run(tmp_path, "--kind", kind, "--steps", "6", "--wait", ranks=2)
    again = run(tmp_path, "--kind", kind, "--steps", "8", ranks=2)
    assert [one["from"] for one in again] == [6, 6]
    right = whole(tmp_path, "--kind", kind, "--steps", "8", ranks=2)
    assert [one["state"] for one in again] == [one["state"] for one in right]


@pytest.mark.slow
def test_a_restart_below_headway_run_finds_the_memory(tmp_path: Path) -> None:
    words = ("--kind", "ddp", "--steps", "9", "--kill-after", "7")
    restarts = ("run", "-o", "run", "--no-report", "--restarts", "1")
    again = run(tmp_path, *words, ranks=2, headway=restarts)
    assert [(one["from"], one["source"]) for one in again] == [(6, "memory")] * 2
    right = whole(tmp_path, "--kind", "ddp", "--steps", "9", ranks=2)
    assert [one["state"] for one in again] == [one["state"] for one in right]


@pytest.mark.slow
def test_one_rank_goes_on_where_two_were(tmp_path: Path) -> None:
    run(tmp_path, "--kind", "fsdp", "--steps", "6", "--wait", ranks=2)
    (one,) = run(tmp_path, "--kind", "plain", "--steps", "6")
    two = run(tmp_path, "--kind", "fsdp", "--steps", "6", ranks=2, out="two")
    assert one["from"] == 6 and {told["state"] for told in two} == {one["state"]}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), [("plain", 1), ("replicated", 2)])
def test_deltas_are_composed(kind: str, ranks: int, tmp_path: Path) -> None:
    words = ("--kind", kind, "--every", "1", "--wait")
    run(tmp_path, *words, "--steps", "6", ranks=ranks)
    found = Store(tmp_path / "store").checkpoints()
    assert [one.manifest.kind for one in found] == ["delta"] * 5 + ["full"]
    tables = [{name for file in one.manifest.files for name in delta_tables(file)} for one in found]
    assert all(len(names) == 2 for names in tables[:-1]), "the table, and the sums of Adagrad"
    again = run(tmp_path, *words, "--steps", "8", ranks=ranks)
    assert {one["from"] for one in again} == {6}
    right = whole(tmp_path, *words, "--steps", "8", ranks=ranks)
    assert [one["state"] for one in again] == [one["state"] for one in right]
