"""Which run a launch belongs to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import TargetUnwritable, UsageError
from headway.journal.run_files import RUN_JSON
from headway.launch import coordination, run_folder
from headway.launch.run_folder import RunFolder
from headway.storage.atomic_write import write_atomically
from headway.storage.upload import RunUploader
from tests.support import has_code


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepare(
    *command: str,
    output: str | None = None,
    name: str | None = None,
    force: bool = False,
    join: bool = False,
    env: dict[str, str] | None = None,
) -> RunFolder:
    return run_folder.prepare(
        command, output=output, name=name, force=force, join=join, env=env or {}
    )


def launched(
    folder: RunFolder, *events: dict[str, object], wall: int = 1, attempt: str = ""
) -> None:
    """What the launcher of a launch that has ended has written."""
    path = folder.journal / f"launcher-{folder.launch}{attempt}-node-1.jsonl"
    lines = [{"ev": "head", "wall": wall}, *events]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    coordination.leave_launch(folder.journal, folder.launch)


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (("torchrun", "--nproc-per-node", "8", "src/train.py", "--lr", "1"), "train"),
        (("python", "-m", "recipes.finetune"), "recipes"),
        (("./job.sh",), "job"),
    ],
)
def test_the_name_is_taken_from_the_command(command: tuple[str, ...], stem: str) -> None:
    folder = prepare(*command)
    assert folder.run.startswith(f"{stem}-")
    assert folder.folder == Path("headway") / folder.run
    assert (folder.folder / "run.json").exists()


def test_two_runs_of_one_second_do_not_meet() -> None:
    assert prepare("a.py").folder != prepare("a.py").folder


@pytest.mark.parametrize("variable", [variable for variable, _ in run_folder.IDENTITIES])
def test_launches_of_one_identity_join(variable: str) -> None:
    env = {variable: "7"}
    first, beside = prepare("a.py", env=env), prepare("a.py", env=env)
    assert first.launch == beside.launch  # another node of the same launch
    (first.journal / f"launcher-{first.launch}-node-1.jsonl").touch()
    coordination.leave_launch(first.journal, first.launch)
    later = prepare("a.py", env=env)
    assert first.folder == beside.folder == later.folder
    assert (first.index, later.index) == (0, 1)
    assert first.launch != later.launch


def test_a_marker_of_dead_launchers_is_not_joined() -> None:
    env = {"SLURM_JOB_ID": "7"}
    first = prepare("a.py", env=env)
    os.utime(first.journal / coordination.MARKER, (1, 1))
    stale = prepare("a.py", env=env)
    requeued = prepare("a.py", env={**env, "SLURM_RESTART_COUNT": "1"})
    assert len({first.launch, stale.launch, requeued.launch}) == 3


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_marker_that_cannot_be_read_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(coordination, "MARKER_LIMIT_S", 0.0)
    marker = prepare("a.py", env={"SLURM_JOB_ID": "7"}).journal / coordination.MARKER
    marker.unlink()
    make(marker)
    with pytest.raises(TargetUnwritable):
        prepare("a.py", env={"SLURM_JOB_ID": "7"})


def test_two_trainings_of_one_slurm_job_are_two_runs() -> None:
    env = {"SLURM_JOB_ID": "7"}
    runs = [prepare(script, env=env).run for script in ("a.py", "b.py", "a.py", "b.py")]
    assert runs == ["slurm-7", "slurm-7-2", "slurm-7", "slurm-7-2"]


def test_identity_none_is_no_identity() -> None:
    assert prepare("a.py", env={"TORCHELASTIC_RUN_ID": "none"}).run.startswith("a-")


def test_another_job_does_not_join_a_name() -> None:
    runs = [prepare("a.py", name="n", env={"SLURM_JOB_ID": number}) for number in "7788"]
    assert [run.run for run in runs] == ["n", "n", "n-2", "n-2"]
    assert [run.note.code for run in runs] == ["", "", "run-exists", "run-exists"]
    assert json.loads((runs[2].folder / RUN_JSON).read_text())["run"] == "n-2"


def test_a_run_is_joined_on_demand() -> None:
    first = prepare("a.py", name="n")
    assert prepare("b.py", name="n", join=True).folder == first.folder
    with pytest.raises(UsageError, check=has_code("join-without-name")):
        prepare("a.py", join=True)


EXIT = {"ev": "exit", "code": 0}


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize(
    ("events", "joined"),
    [
        ([EXIT], False),
        ([EXIT, {"ev": "verdict"}], False),
        ([{"ev": "exit", "code": 1}], True),
        ([{"ev": "signal", "signal": 15}, EXIT], True),
        ([{"ev": "preempted", "step": 7}, EXIT], True),
        ([], True),
    ],
)
def test_a_complete_run_is_not_joined(
    events: list[dict[str, object]], joined: bool, join: bool
) -> None:
    env = {"HEADWAY_RUN": "n"}
    launched(prepare("a.py", env=env), *events)
    again = prepare("a.py", env=env, join=join)
    assert again.run == ("n" if joined else "n-2")
    assert again.note.code == ("" if joined else "run-complete")


def test_the_newest_launch_says_whether_a_run_is_complete() -> None:
    env = {"HEADWAY_RUN": "n"}
    launched(prepare("a.py", env=env), {"ev": "exit", "code": 1}, wall=1)
    again = prepare("a.py", env=env)
    launched(again, {"ev": "exit", "code": 1}, wall=2)
    launched(again, EXIT, wall=3, attempt=".1")
    assert prepare("a.py", env=env).run == "n-2"


def test_a_run_that_is_going_on_is_joined() -> None:
    """Another node has ended already; this one joins late."""
    env = {"HEADWAY_RUN": "n"}
    first = prepare("a.py", env=env)
    (first.journal / coordination.MARKER).rename(first.journal / "kept")
    launched(first, EXIT)
    (first.journal / "kept").rename(first.journal / coordination.MARKER)
    assert prepare("a.py", env=env).launch == first.launch


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
@pytest.mark.parametrize("name", ["run.json", "journal"])
@pytest.mark.parametrize("force", [False, True])
def test_the_run_of_another_user_is_left_alone(name: str, force: bool) -> None:
    env = {"HEADWAY_RUN": "n"}
    first = prepare("a.py", env=env)
    os.chown(first.folder / name, 65534, 65534)
    again = prepare("a.py", env=env, force=force)
    assert (again.run, again.note.code) == ("n-2", "run-of-another-user")
    assert (first.folder / name).stat().st_uid == 65534


def test_what_is_no_run_is_left_alone() -> None:
    Path("file").touch()
    Path("full").mkdir()
    Path("full", "mine").touch()
    Path("empty").mkdir()
    folders = [prepare("a.py", output=name) for name in ("file", "full", "empty")]
    assert [str(folder.folder) for folder in folders] == ["file-2", "full-2", "empty"]
    assert [folder.note.code for folder in folders] == ["folder-exists", "folder-exists", ""]


def test_a_launch_that_was_slower_takes_the_next_name(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = run_folder._create

    def late(folder: Path, facts: object) -> bool:
        if folder.name == "n":
            folder.mkdir(parents=True)
            write_atomically(folder / RUN_JSON, '{"identity": null}')
        return claim(folder, facts)  # type: ignore[arg-type]

    monkeypatch.setattr(run_folder, "_create", late)
    assert prepare("a.py", name="n").run == "n-2"


@pytest.mark.parametrize("name", ["n" * 300, "n"])
def test_no_folder_is_one_error(name: str) -> None:
    Path("headway").symlink_to("/proc/nowhere")
    with pytest.raises(TargetUnwritable):
        prepare("a.py", name=name)


def test_a_launch_that_has_ended_is_not_joined() -> None:
    env = {"SLURM_JOB_ID": "7"}
    first = prepare("a.py", env=env)
    (first.journal / f".decision-{first.launch}-0").write_text('{"done": true}')
    assert prepare("a.py", env=env).launch != first.launch


def test_a_url_needs_a_known_scheme() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, check=has_code("url-unusable")):
        prepare("a.py", output="nosuch://x/y")


def test_the_place_behind_a_url_is_not_asked_before_the_job_starts() -> None:
    """Its file system may connect to a server that does not answer."""
    fsspec = pytest.importorskip("fsspec")

    class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            raise AssertionError("connects")

    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    assert prepare("a.py", output="unreachable://x/y").url == "unreachable://x/y"


def test_adopt_makes_one_folder_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name, _ in run_folder.IDENTITIES:
        monkeypatch.delenv(name, raising=False)
    assert run_folder.folder_of_process() == run_folder.folder_of_process()


def test_jobs_that_differ_by_a_secret_only_are_two_runs() -> None:
    env = {"SLURM_JOB_ID": "7"}
    secrets = ("first-password", "other-password", "first-password")
    folders = [prepare("a.py", "--password", secret, env=env) for secret in secrets]
    assert [folder.run for folder in folders] == ["slurm-7", "slurm-7-2", "slurm-7"]
    assert "password" not in (folders[0].folder / "run.json").read_text().replace("--password", "")


def test_the_exact_command_is_not_sent_to_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder = prepare("a.py", "--password", "first-password")
    assert (folder.folder / "command.json").exists()
    RunUploader(folder.folder, f"file://{tmp_path}/there").send()
    sent = {path.name for path in (tmp_path / "there").rglob("*")}
    assert "run.json" in sent and "command.json" not in sent
