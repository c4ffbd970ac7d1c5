"""Which run a launch belongs to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.errors import RunExists, UsageError
from headway.launch import target, together


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(
    *command: str,
    output: str | None = None,
    name: str | None = None,
    force: bool = False,
    env: dict[str, str] | None = None,
) -> target.Target:
    return target.prepare(command, output=output, name=name, force=force, env=env or {})


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (("torchrun", "--nproc-per-node", "8", "src/train.py", "--lr", "1"), "train"),
        (("python", "-m", "recipes.finetune"), "recipes"),
        (("./job.sh",), "job"),
    ],
)
def test_the_name_is_taken_from_the_command(command: tuple[str, ...], stem: str) -> None:
    made = prepare(*command)
    assert made.run.startswith(f"{stem}-")
    assert made.folder == Path("headway") / made.run
    assert (made.folder / "run.json").exists()


def test_two_runs_of_one_second_do_not_meet() -> None:
    assert prepare("a.py").folder != prepare("a.py").folder


def test_launches_of_one_identity_join() -> None:
    env = {"SLURM_JOB_ID": "7"}
    first, beside = prepare("a.py", env=env), prepare("a.py", env=env)
    assert first.launch == beside.launch  # another node of the same launch
    (first.journal / f"launcher-{first.launch}-node-1.jsonl").touch()
    together.leave(first.journal, first.launch)
    later = prepare("a.py", env=env)
    assert first.folder == beside.folder == later.folder
    assert (first.index, later.index) == (0, 1)
    assert first.launch != later.launch


def test_a_marker_of_dead_launchers_is_not_joined() -> None:
    env = {"SLURM_JOB_ID": "7"}
    first = prepare("a.py", env=env)
    os.utime(first.journal / together.MARKER, (1, 1))
    stale = prepare("a.py", env=env)
    requeued = prepare("a.py", env={**env, "SLURM_RESTART_COUNT": "1"})
    assert len({first.launch, stale.launch, requeued.launch}) == 3


def test_two_trainings_of_one_slurm_job_are_two_runs() -> None:
    env = {"SLURM_JOB_ID": "7"}
    runs = [prepare(script, env=env).run for script in ("a.py", "b.py", "a.py", "b.py")]
    assert runs == ["slurm-7", "slurm-7-2", "slurm-7", "slurm-7-2"]


def test_identity_none_is_no_identity() -> None:
    assert prepare("a.py", env={"TORCHELASTIC_RUN_ID": "none"}).run.startswith("a-")


def test_another_job_does_not_join_a_name() -> None:
    prepare("a.py", name="n", env={"SLURM_JOB_ID": "7"})
    prepare("a.py", name="n", env={"SLURM_JOB_ID": "7"})
    with pytest.raises(RunExists, match="--force"):
        prepare("a.py", name="n", env={"SLURM_JOB_ID": "8"})


def test_a_url_needs_a_known_scheme() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match="nosuch://x"):
        prepare("a.py", output="nosuch://x/y")


def test_adopt_makes_one_folder_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name, _ in target.IDENTITIES:
        monkeypatch.delenv(name, raising=False)
    assert target.adopt() == target.adopt()
