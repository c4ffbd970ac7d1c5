"""Which commands are the same job."""

from __future__ import annotations

import pytest

from headway.session.job import identify

JOB = ("torchrun", "--nproc-per-node", "2", "train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    "same",
    [
        ("python", "train.py", "--lr", "0.1"),
        ("torchrun", "--standalone", "./train.py", "--lr", "0.1"),
        (*JOB, "--seed", "7"),
        (*JOB, "--seed_everything", "7", "--ckpt_path", "last", "--trainer.default_root_dir=b"),
        (*JOB, "--run-name=night-3", "--output_dir", "out/3"),
        (*JOB, "trainer.max_steps=50"),
        (*JOB, "--resume", "--seed=1"),
        (*JOB, "logs/2026-11-16_07-11"),
    ],
)
def test_how_it_is_launched_and_what_each_run_has_of_its_own(same: tuple[str, ...]) -> None:
    assert identify(same) == identify(JOB)


@pytest.mark.parametrize(
    "other",
    [
        ("torchrun", "train.py", "--lr", "0.2"),
        ("torchrun", "train.py"),
        ("torchrun", "old/train.py", "--lr", "0.1"),
        (*JOB, "--compile"),
        (*JOB, "--resume", "--compile"),
    ],
)
def test_what_changes_the_training_makes_another_job(other: tuple[str, ...]) -> None:
    assert identify(other).id != identify(JOB).id


def test_a_module_and_a_program() -> None:
    module = identify(["python", "-m", "pack.train", "--lr", "1"])
    assert module.words == ("pack.train", "--lr", "1")
    assert identify(["torchrun", "-m", "pack.train", "--lr", "1"]).id == module.id
    assert identify(["./run.sh", "a"]).words == ("./run.sh", "a")
    assert module.id.startswith("pack-") and "/" not in module.id
