from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.chaos import corrupt


def write(path: Path, size: int, at: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    os.utime(path, (at, at))
    return path


def test_the_newest_file_is_meant(tmp_path: Path) -> None:
    write(tmp_path / "step-10.pt", 5000, 10)
    newest = write(tmp_path / "step-20.pt", 4000, 20)
    write(tmp_path / "latest.txt", 8, 30)
    write(tmp_path / "step-30.tmp", 9000, 40)
    assert corrupt.newest_checkpoint(str(tmp_path)) == str(newest)


def test_of_a_folder_its_largest_file(tmp_path: Path) -> None:
    write(tmp_path / "step-10" / "__0_0.distcp", 90_000, 10)
    write(tmp_path / "step-20" / ".metadata", 2000, 21)
    shard = write(tmp_path / "step-20" / "__0_0.distcp", 50_000, 20)
    assert corrupt.newest_checkpoint(str(tmp_path)) == str(shard)


def test_folders_within_folders(tmp_path: Path) -> None:
    write(tmp_path / "run-a" / "step-10" / "model.pt", 90_000, 10)
    shard = write(tmp_path / "run-a" / "step-20" / "model.pt", 50_000, 20)
    (tmp_path / "run-b").mkdir()
    assert corrupt.newest_checkpoint(str(tmp_path)) == str(shard)


def test_nothing_to_damage(tmp_path: Path) -> None:
    write(tmp_path / "small", 100, 10)
    assert corrupt.newest_checkpoint(str(tmp_path)) is None
    assert corrupt.newest_checkpoint(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("how", ["flip", "truncate", "zero"])
def test_damage(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "a.pt", 5000, 10)
    before = path.read_bytes()
    corrupt.damage_file(str(path), how)
    after = path.read_bytes()
    if how == "flip":
        changed = [i for i in range(5000) if before[i] != after[i]]
        assert changed == [2500]
    else:
        assert after == (before[:2500] if how == "truncate" else bytes(5000))
    assert path.stat().st_mtime == 10
