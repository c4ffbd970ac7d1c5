"""Finding the run of a Slurm job, and reading its status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.schedule.slurm import cluster
from headway.schedule.slurm.controller import RunIndex, read_run_status
from headway.testing import EPOCH, FakeRun
from tests.unit.schedule.recorded_slurm import RecordedSlurm

STATE = cluster.read_cluster(RecordedSlurm())


def job(number: int, folder: Path) -> cluster.SlurmJob:
    known = STATE.job(number)
    assert known is not None
    return replace(known, folder=str(folder))


def run(folder: Path, number: int) -> Path:
    """A run that trains for 55 s; its save at 40 s has the state of 8 s before."""
    fake = FakeRun()
    fake.launcher(begin=0, scheduler_job=str(number))
    rank = fake.process(begin=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    rank.event("checkpoint", 40, level="disk", step=60, durable_s=8.0, bytes=10)
    return fake.write(folder)


def test_a_run_in_the_submission_folder(tmp_path: Path) -> None:
    run(tmp_path / "headway" / "other", 7)
    mine = run(tmp_path / "headway" / "mine", 1)
    (tmp_path / "headway" / "no-run").mkdir()
    assert RunIndex().folder(job(1, tmp_path)) == mine
    assert RunIndex().folder(job(3, tmp_path)) is None
    assert RunIndex().status(job(3, tmp_path)) is None


def test_a_run_named_by_the_comment_or_below_a_given_folder(tmp_path: Path) -> None:
    named = run(tmp_path / "runs" / "b", 2)
    assert job(2, tmp_path).comment == "headway=runs/b"
    assert RunIndex().folder(job(2, tmp_path)) == named
    elsewhere = run(tmp_path / "shared" / "one", 1)
    assert RunIndex([tmp_path / "shared"]).folder(job(1, tmp_path)) == elsewhere


def test_a_comment_cannot_claim_the_run_of_another_job(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "b", 7)
    assert RunIndex().folder(job(2, tmp_path)) is None


def test_the_status_of_a_run(tmp_path: Path) -> None:
    status = read_run_status(run(tmp_path / "r", 1))
    assert status is not None
    assert status.unsaved == pytest.approx(55 - 32)
    assert status.saved_at == pytest.approx(EPOCH + 32)
    assert (status.save, status.preemptions, status.outcome) == (8.0, 0, "running")


def test_a_run_without_checkpointer_cannot_save_on_a_signal(tmp_path: Path) -> None:
    fake = FakeRun()
    fake.launcher(begin=0)
    rank = fake.process(begin=1)
    rank.train(first=1, count=100, start=5, each=0.5)
    rank.span("checkpoint_save", 55, 57, step=100, path="a.pt")
    rank.train(first=101, count=10, start=57, each=0.5)
    status = read_run_status(fake.write(tmp_path / "r"))
    assert status is not None and status.save is None and status.saved_at is not None


def test_a_folder_without_a_run_has_no_status(tmp_path: Path) -> None:
    assert read_run_status(tmp_path) is None
    assert read_run_status(tmp_path / "nowhere") is None
    (tmp_path / "journal").mkdir()
    assert read_run_status(tmp_path) is None
