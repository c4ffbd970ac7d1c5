"""When the folder of a checkpoint counts as finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.async_save import checkpoint_folders
from headway.checkpoint.async_save.background import write_queue
from headway.probe.recorder import recorder
from tests.support import AsyncSave, Disk, lazy

torch = lazy("torch")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_DIR", str(tmp_path / "journal"))
    monkeypatch.setattr(recorder, "rank", None)
    monkeypatch.setattr(checkpoint_folders, "_saved", set())
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


def records(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(journal.iterdir())]


def saved(folder: Path, save: Callable[[], object]) -> None:
    def framework(path: str) -> None:
        Path(path).mkdir(exist_ok=True)
        save()

    checkpoint_folders.save_folder(lambda path: path, framework, str(folder))


def test_it_is_finished_when_all_that_was_queued_is_written(
    behind: AsyncSave, disk: Disk, journal: Path, tmp_path: Path
) -> None:
    disk.free.clear()
    saved(tmp_path / "a", lambda: behind(1, tmp_path / "a" / "one.pt"))
    (record,) = records(journal)
    assert (record["folder"], record["existed"]) == (str(tmp_path / "a"), False)
    disk.free.set()
    write_queue.wait("the test")
    assert not records(journal) and (tmp_path / "a" / "one.pt").exists()


@pytest.mark.parametrize("fails", ["the save", "a write"])
def test_it_is_not_if_something_went_wrong(
    behind: AsyncSave, disk: Disk, journal: Path, tmp_path: Path, fails: str
) -> None:
    def save() -> None:
        behind(1, tmp_path / "a" / "one.pt")
        if fails == "the save":
            raise KeyboardInterrupt

    if fails == "a write":
        disk.error = OSError(28, "No space left on device")
        saved(tmp_path / "a", save)
    else:
        with pytest.raises(KeyboardInterrupt):
            saved(tmp_path / "a", save)
    write_queue.wait("the test")
    write_queue.failed.clear()  # as if somebody had been told
    disk.error = None
    assert len(records(journal)) == 1
    saved(tmp_path / "a", lambda: None)  # once more, and well
    assert not records(journal)


def test_what_was_there_before_is_known(
    behind: AsyncSave, disk: Disk, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name in ("a", "a", "b"):
        if name == "b":
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "old.pt").touch()
            monkeypatch.setattr(checkpoint_folders, "_process_begin", lambda: 1e12)
        saved(tmp_path / name, lambda: seen.append(records(journal)[0]["existed"]))
    assert seen == [False, True, True]


def test_only_rank_0_and_only_the_outermost_save_count(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def inner() -> None:
        saved(tmp_path / "a" / "inner", lambda: counts.append(len(records(journal))))

    saved(tmp_path / "a", inner)
    monkeypatch.setattr(recorder, "rank", 1)
    saved(tmp_path / "b", lambda: counts.append(len(records(journal))))
    assert counts == [1, 0]


def test_a_removal_beside_it_finishes_it_and_one_in_it_does_not(
    journal: Path, tmp_path: Path
) -> None:
    counts = []

    def save() -> None:
        for path in ("a/part", "elsewhere/b", "old/part"):
            checkpoint_folders.before_removal(str(tmp_path / "out" / path))
            counts.append(len(records(journal)))

    (tmp_path / "out").mkdir()
    saved(tmp_path / "out" / "a", save)
    assert counts == [1, 0, 0]


def test_a_record_that_cannot_be_removed_is_removed_later(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr("headway.probe.unfinished_saves.UnfinishedSave.finish", _fail)
        saved(tmp_path / "a", lambda: None)
    assert len(records(journal)) == 1
    saved(tmp_path / "b", lambda: None)
    assert not records(journal)


def _fail(record: Any) -> None:
    raise OSError(116, "Stale file handle")
