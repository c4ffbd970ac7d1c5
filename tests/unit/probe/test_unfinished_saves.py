"""Checkpoint folders of unfinished saves: which are removed, and which never are."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from headway.probe import unfinished_saves
from headway.storage import process_identity
from tests.support import NO_PROCESS

ATTEMPT = ["launch.1", "0"]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_DIR", str(tmp_path / "journal"))
    monkeypatch.setenv("HEADWAY_LAUNCH", "launch")
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").touch()
    return folder


def change(journal: Path, **fields: Any) -> None:
    (path,) = journal.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def process(**fields: Any) -> str:
    return json.dumps({**json.loads(process_identity.identify_process()), **fields})


def test_only_a_finished_save_leaves_no_record(journal: Path, tmp_path: Path) -> None:
    save = unfinished_saves.begin_save(str(tmp_path / "a"), existed=False)
    assert save is not None and len(list(journal.iterdir())) == 1
    save.finish()
    save.finish()
    assert not list(journal.iterdir())


def test_a_dead_process_has_its_folder_removed_and_a_living_one_has_not(
    journal: Path, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "a")
    unfinished_saves.begin_save(str(folder), existed=False)
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == [] and folder.exists()
    change(journal, process=process(pid=NO_PROCESS))
    assert (
        unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == [str(folder)]
        and not folder.exists()
    )
    assert not list(journal.iterdir())


@pytest.mark.parametrize(
    ("current", "removed"), [(None, False), (["launch", "0"], False), (ATTEMPT, True)]
)
def test_of_another_host_an_attempt_that_is_over_is_known(
    journal: Path, tmp_path: Path, current: list[str] | None, removed: bool
) -> None:
    folder = checkpoint(tmp_path / "a")
    unfinished_saves.begin_save(str(folder), existed=False)
    change(journal, process=process(boot="another"))
    assert unfinished_saves.remove_dead_saves(str(journal), current) == [str(folder)] * removed
    assert folder.exists() != removed
    assert bool(list(journal.iterdir())) != removed


def test_what_was_there_before_the_save_stays(journal: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    before = time.time() + 5
    assert unfinished_saves.existed_before(str(folder), before)
    assert not unfinished_saves.existed_before(str(folder), before - 100)
    assert not unfinished_saves.existed_before(str(tmp_path / "missing"), before)
    unfinished_saves.begin_save(str(folder), existed=True)
    change(journal, process=process(pid=NO_PROCESS))
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == []
    assert folder.exists() and not list(journal.iterdir())


@pytest.mark.parametrize("kind", ["file", "link", "missing", "relative"])
def test_nothing_but_a_folder_is_removed(journal: Path, tmp_path: Path, kind: str) -> None:
    folder, target = checkpoint(tmp_path / "a"), tmp_path / "target"
    if kind == "file":
        target.touch()
    elif kind == "link":
        target.symlink_to(folder)
    unfinished_saves.begin_save(str(target), existed=False)
    change(journal, process=process(pid=NO_PROCESS))
    if kind == "relative":
        change(journal, folder=os.path.relpath(folder))
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == []
    assert folder.exists() and os.path.lexists(target) == (kind in ("file", "link"))


@pytest.mark.parametrize("text", ["", "[]", '{"folder": 3}', "{", '"a"'])
def test_a_damaged_record_removes_nothing(journal: Path, text: str) -> None:
    (journal / f"{unfinished_saves.RECORD_PREFIX}a").write_text(text)
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == []


def test_a_record_of_another_user_or_behind_a_link_is_not_followed(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "a")
    unfinished_saves.begin_save(str(folder), existed=False)
    change(journal, process=process(pid=NO_PROCESS))
    (path,) = journal.iterdir()
    os.rename(path, tmp_path / "record")
    path.symlink_to(tmp_path / "record")
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == []
    os.replace(tmp_path / "record", path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert unfinished_saves.remove_dead_saves(str(journal), ATTEMPT) == [] and folder.exists()


def test_where_nothing_can_be_recorded_the_save_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_DIR", str(tmp_path / "missing"))
    assert unfinished_saves.begin_save(str(tmp_path / "a"), existed=False) is None
    assert unfinished_saves.remove_dead_saves(str(tmp_path / "missing"), ATTEMPT) == []
    monkeypatch.delenv("HEADWAY_DIR")
    assert unfinished_saves.begin_save(str(tmp_path / "a"), existed=False) is None
