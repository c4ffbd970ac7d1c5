from __future__ import annotations

import fractions
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.async_save import dcp_save
from headway.checkpoint.async_save.background import write_queue
from tests.support import AsyncSave, Disk, has_code, lazy

torch = lazy("torch")
torch_dcp = lazy("torch.distributed.checkpoint")
state_dict_saver = lazy("torch.distributed.checkpoint.state_dict_saver")
FileSystemWriter = lazy("torch.distributed.checkpoint:FileSystemWriter")
Other = lazy("tests.unit.checkpoint.torch_classes:Other")

pytestmark = pytest.mark.timeout(60)


def save(*args: Any, **kwargs: Any) -> Any:
    return dcp_save.save(state_dict_saver, torch_dcp.save, *args, **kwargs)


def loaded(folder: Path) -> Any:
    into = {"model": {"weight": torch.zeros(4, 4)}, "step": 0}
    torch_dcp.load(into, checkpoint_id=folder)
    return into


def test_it_is_the_state_at_the_call(behind: AsyncSave, disk: Disk, tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": {"weight": torch.ones(4, 4)}, "step": 7}
    disk.free.clear()
    for number in range(3):  # the third in the memory of the first
        state["model"]["weight"].fill_(number)
        if number == 2:
            disk.free.set()
        save(state, checkpoint_id=tmp_path / str(number))
        state["model"]["weight"].fill_(-1)
    write_queue.wait("the test")
    for number in range(3):
        found = loaded(tmp_path / str(number))
        assert torch.equal(found["model"]["weight"], torch.full((4, 4), float(number)))
        assert found["step"] == 7


def test_what_it_returns_waits_for_the_save(behind: AsyncSave, disk: Disk, tmp_path: Path) -> None:
    disk.free.clear()
    metadata = save({"a": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path / "a"))
    assert isinstance(metadata, state_dict_saver.Metadata) and write_queue.pending
    disk.free.set()
    assert list(metadata.state_dict_metadata) == ["a"] and metadata.storage_data
    assert not write_queue.pending


@pytest.mark.parametrize(
    ("value", "more", "code"),
    [
        (fractions.Fraction(1, 3), lambda path: {"checkpoint_id": path}, "type-not-supported"),
        (
            1,
            lambda path: {"checkpoint_id": path, "planner": torch_dcp.DefaultSavePlanner()},
            "own-planner",
        ),
        (1, lambda path: {"storage_writer": Other(path)}, "own-storage-writer"),
    ],
)
def test_what_cannot_be_copied_is_saved_plainly(
    behind: AsyncSave,
    tmp_path: Path,
    events: list[dict[str, Any]],
    value: Any,
    more: Callable[[Path], dict[str, Any]],
    code: str,
) -> None:
    save({"a": torch.ones(2), "b": value}, **more(tmp_path / "a"))
    assert not write_queue.pending and (tmp_path / "a" / ".metadata").exists()
    assert [event["code"] for event in events if "why" in event] == [code]


def test_an_older_checkpoint_in_the_folder_is_not_written_over_behind(
    behind: AsyncSave, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    save({"a": torch.ones(2)}, checkpoint_id=str(tmp_path))
    write_queue.wait("the test")
    with pytest.warns(UserWarning, match="overwriting"):
        save({"a": torch.zeros(2)}, checkpoint_id=str(tmp_path))
    assert not write_queue.pending
    assert [event["code"] for event in events if "why" in event] == ["checkpoint-in-folder"]


def test_a_failed_save_has_no_metadata_and_is_raised_by_the_next(
    behind: AsyncSave, disk: Disk, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "file" / "below")
    write_queue.wait("the test")
    with pytest.raises(RuntimeError, check=has_code("background-write-failed")):
        save({"a": torch.ones(2)}, checkpoint_id=tmp_path / "b")
    write_queue.wait("the test")
    assert sorted(os.listdir(tmp_path)) == ["b", "file"]
