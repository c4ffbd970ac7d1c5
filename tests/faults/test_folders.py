"""An unusable run folder costs the recording, never the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.launches import Launch, Row, launch, names
from tests.support import wait_until

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
FAILS_ONCE = ("sh", "-c", "echo start >> starts; touch up; [ -e done ] || { touch done; exit 5; }")


# The same, once a file `end` exists.
FAILS_LATER = (
    "sh",
    "-c",
    "echo start >> starts; touch up; while [ ! -e end ]; do sleep 0.02; done; "
    "[ -e done ] || { touch done; exit 5; }",
)


def move_away(started: Launch) -> None:
    (started.folder / "run").rename(started.folder / "moved")
    started.touch("end")


def put_a_file_in_its_place(started: Launch) -> None:
    (started.folder / "run").rename(started.folder / "moved")
    (started.folder / "run").touch()
    started.touch("end")


def taken(folder: Path) -> None:
    (folder / "run" / "journal").mkdir(parents=True)


def foreign(folder: Path) -> None:
    taken(folder)
    os.chown(folder / "run" / "journal", 65534, 65534)


ROWS = {
    "no such place": Row(
        options=("-o", "/proc/nowhere"), codes=("target-unwritable",), outcomes=None
    ),
    "a long name": Row(options=("--name", "n" * 300), codes=("target-unwritable",), outcomes=None),
    "restarts without a folder": Row(
        options=("-o", "/proc/nowhere", "--restarts", "2"),
        job=FAILS_ONCE,
        act=lambda started: None,
        code=0,
        codes=("target-unwritable",),
        starts=2,
        outcomes=None,
    ),
    "no folder at all": Row(
        options=("-o", "/proc/nowhere"),
        patch="import tempfile\ntempfile.tempdir = '/proc/nowhere'",
        codes=("target-unwritable",),
        outcomes=None,
        slow=True,
    ),
    "taken": Row(before=taken, codes=("run-exists",), run="run-2", slow=True),
    "a file": Row(
        before=lambda folder: (folder / "run").touch(),
        codes=("folder-exists",),
        run="run-2",
        slow=True,
    ),
    "moved while the job runs": Row(
        options=("-o", "run", "--restarts", "2"),
        job=FAILS_LATER,
        act=move_away,
        code=0,
        starts=2,
        outcomes=("completed",),
    ),
    "a file in its place": Row(
        options=("-o", "run", "--restarts", "2"),
        job=FAILS_LATER,
        act=put_a_file_in_its_place,
        code=0,
        starts=2,
        codes=("nodes-not-asked", "ledger-not-written"),
        run="moved",
        slow=True,
    ),
    "another user's": Row(
        options=("-o", "run", "--join"),
        before=foreign,
        codes=("run-of-another-user",),
        run="run-2",
    ),
}


@names(ROWS)
def test_the_job_runs(tmp_path: Path, name: str) -> None:
    if name == "another user's" and os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    ROWS[name].check(tmp_path / "job")


@contextlib.contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """A file system in memory."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this sandbox allows no mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@ROOT
@pytest.mark.parametrize(
    "free", [0, 1, *(pytest.param(pages, marks=pytest.mark.slow) for pages in (2, 3, 4, 8))]
)
def test_a_nearly_full_disk(tmp_path: Path, free: int) -> None:
    """The number of free pages when the job starts; folders use some of them."""
    with mounted(tmp_path / "disk", "-o", "size=256k") as disk:
        with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(disk / "fill", (disk / "fill").stat().st_size - free * 4096)
        row = Row(options=("-o", str(disk / "run"), "--restarts", "2"), job=FAILS_ONCE)
        with launch(tmp_path / "job", *row.options, job=row.job) as started:
            assert started.finish() == 0, started.stderr
        assert started.starts == 2


@ROOT
def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-o", "size=1m") as disk:
        options = ("-o", str(disk / "run"), "--restarts", "2")
        with launch(tmp_path / "job", *options, job=FAILS_LATER) as started:
            started.wait_for("up")
            with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            started.touch("end")
            assert started.finish() == 0, started.stderr
        assert started.starts == 2
        assert started.codes >= {"nodes-not-asked", "ledger-not-written"}


@ROOT
def test_a_read_only_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-o", "ro") as disk:
        row = Row(options=("-o", str(disk / "run")), codes=("target-unwritable",), outcomes=None)
        row.check(tmp_path / "job")


@pytest.mark.parametrize(
    ("env", "runs"),
    [({}, ["night", "night-2", "night-3"]), ({"HEADWAY_RUN": "one"}, ["night"])],
    ids=["others", "one run"],
)
def test_launches_of_one_moment(tmp_path: Path, env: dict[str, str], runs: list[str]) -> None:
    """Each has its own folder, or all share one if they belong to one run."""
    with contextlib.ExitStack() as stack:
        launches = [
            stack.enter_context(launch(tmp_path, "--name", "night", env=env)) for _ in range(3)
        ]
        wait_until(lambda: launches[0].starts == 3)
        launches[0].touch("end")
        assert [started.finish() for started in launches] == [5, 5, 5]
    journals = [
        list((folder / "journal").glob("launcher-*.jsonl"))
        for folder in sorted((tmp_path / "headway").iterdir())
    ]
    assert sorted(path.name for path in (tmp_path / "headway").iterdir()) == runs
    assert [len(paths) for paths in journals] == [3 // len(runs)] * len(runs)
    launch_ids = {path.name.split("-")[1] for paths in journals for path in paths}
    assert len(launch_ids) == len(runs)
