from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from headway.storage import atomic_file


def test_it_is_the_file_only_when_it_is_committed(tmp_path: Path) -> None:
    target = tmp_path / "a.pt"
    target.write_bytes(b"old")
    beside = atomic_file.AtomicFile(str(target))
    Path(beside.path).write_bytes(b"new")
    assert target.read_bytes() == b"old" and Path(beside.path).name == "a.pt"
    beside.commit()
    beside.discard()
    assert target.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.pt"]


def test_what_the_dead_have_left_is_swept_and_what_the_living_write_is_not(tmp_path: Path) -> None:
    living = atomic_file.AtomicFile(str(tmp_path / "a.pt"))
    dead = tmp_path / f"{atomic_file.PREFIX}1-1"
    dead.mkdir()
    (dead / atomic_file.LOCK).touch()
    (dead / "a.pt").write_bytes(b"half")
    (tmp_path / f"{atomic_file.PREFIX}2-2").mkdir()  # killed before it had a lock, or after
    atomic_file.remove_abandoned(str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(living.folder)]
    living.discard()


def test_a_folder_that_a_sweep_takes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = []
    flock = fcntl.flock

    def late(handle: int, how: int) -> None:
        if not swept:
            swept.append(True)
            monkeypatch.setattr(fcntl, "flock", flock)
            atomic_file.remove_abandoned(str(tmp_path))
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    beside = atomic_file.AtomicFile(str(tmp_path / "a.pt"))
    assert swept and os.path.isdir(beside.folder) and len(os.listdir(tmp_path)) == 1
    beside.discard()
