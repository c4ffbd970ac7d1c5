from __future__ import annotations

import os
from pathlib import Path

import pytest

import headway
from headway.journal import file_access, pulse
from headway.journal.run_files import read_identity
from headway.launch.rank_tail import RankTail
from tests.truth.loops import the_run_is_still_going


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


STRANGE = [pipe, device, directory]


@pytest.mark.parametrize("make", STRANGE)
def test_only_regular_files_are_read(tmp_path: Path, make: object) -> None:
    path = tmp_path / "file"
    make(path)  # type: ignore[operator]
    with pytest.raises(OSError):
        file_access.read_file(path)
    assert pulse.read(str(path)) is None


def test_a_link_to_a_regular_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert file_access.read_file(tmp_path / "link") == b"content"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file
    with pytest.raises(file_access.NotARegularFile):
        file_access.read_file(path)
    path.write_bytes(bytes(10))
    assert len(file_access.read_file(path, 10)) == 10
    with pytest.raises(file_access.NotARegularFile):
        file_access.read_file(path, 9)


@pytest.mark.parametrize("make", STRANGE)
def test_a_run_with_strange_files_has_a_ledger(tmp_path: Path, make: object) -> None:
    folder = the_run_is_still_going().write(tmp_path)
    expected = headway.load(folder).ledger
    for name in ("strange.jsonl", "strange.pulse"):
        make(folder / "journal" / name)  # type: ignore[operator]
    (folder / "run.json").unlink()
    make(folder / "run.json")  # type: ignore[operator]
    make(folder / "publish.json")  # type: ignore[operator]
    ledger = headway.load(folder).ledger
    assert read_identity(folder) == {}
    assert ledger.buckets == expected.buckets
    assert any("strange.jsonl" in note for note in ledger.notes)


def test_the_launcher_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    pipe(tmp_path / "host-1-1.jsonl")
    rank = RankTail(str(tmp_path / "host-1-1.jsonl"), 1)
    rank.read_new()
    assert rank.head == {}
