"""A checkpoint of several files: the last one is written last, and one in pieces is passed over."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.checkpoint.async_save import checkpoint_folders
from headway.checkpoint.async_save.background import BackgroundSave, WriteQueue
from headway.storage import atomic_file


@dataclass
class State:
    """As transformers' TrainerState."""

    log: list[int] = field(default_factory=list)

    def save_to_json(self, json_path: str) -> None:
        Path(json_path).write_text(str(self.log))


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> WriteQueue:
    queue = WriteQueue()
    monkeypatch.setattr(checkpoint_folders, "write_queue", queue)
    return queue


def newest(folder: Path) -> str | None:
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    return str(found[-1]) if found else None


def last(folder: Path) -> str | None:
    found: str | None = checkpoint_folders.last_complete(newest, folder)
    return found


def test_what_is_saved_after_others_is_written_after_them(
    tmp_path: Path, queued: WriteQueue
) -> None:
    free, written, state = threading.Event(), [], State([1])
    path = tmp_path / "trainer_state.json"

    def slow() -> None:
        assert free.wait(10)
        written.append(path.exists())

    queued.submit(BackgroundSave(str(tmp_path / "optimizer.pt"), "torch.save", 0, slow, 1, 0))
    checkpoint_folders.write_last_file(State.save_to_json, state, json_path=str(path))
    state.log.append(2)  # the training goes on
    assert not path.exists() and atomic_file.PREFIX in str(list(tmp_path.iterdir()))
    free.set()
    queued.wait("the end")
    assert written == [False] and path.read_text() == "[1]"
    assert list(tmp_path.iterdir()) == [path]


def test_with_nothing_to_wait_for_it_is_written_at_once(tmp_path: Path, queued: WriteQueue) -> None:
    checkpoint_folders.write_last_file(State.save_to_json, State([3]), str(tmp_path / "state.json"))
    assert (tmp_path / "state.json").read_text() == "[3]" and not queued.pending


def checkpoint(folder: Path, number: int) -> Path:
    path = folder / f"checkpoint-{number}"
    path.mkdir()
    (path / checkpoint_folders.LAST_FILE).write_text("{}")
    return path


def test_a_checkpoint_in_pieces_is_passed_over(tmp_path: Path) -> None:
    made = {number: checkpoint(tmp_path, number) for number in (2, 10, 4)}
    assert last(tmp_path) == str(made[10])
    (made[10] / f"{atomic_file.PREFIX}1-a").mkdir()
    assert last(tmp_path) == str(made[4])
    (made[4] / checkpoint_folders.LAST_FILE).unlink()  # the Trainer writes it last
    assert last(tmp_path) == str(made[2])
    left = made[2] / f"{atomic_file.PREFIX}1-a"
    left.mkdir()
    (left / atomic_file.LOCK).touch()
    assert last(tmp_path) is None


def test_what_is_being_written_is_not_in_pieces(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 1)
    beside = atomic_file.AtomicFile(str(path / "optimizer.pt"))
    assert last(tmp_path) == str(path)
    beside.discard()
    assert last(tmp_path) == str(path)
