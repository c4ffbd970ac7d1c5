"""A file system that fails: the old file or the new one, and never a failure that nobody hears of.

A plain `torch.save` to the same place is compared with.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.async_save import dcp_save
from headway.checkpoint.async_save.background import WriteFailed, write_queue
from headway.storage import atomic_file
from tests.support import AsyncSave, Disk, has_code, lazy

torch = lazy("torch")
torch_dcp = lazy("torch.distributed.checkpoint")
state_dict_saver = lazy("torch.distributed.checkpoint.state_dict_saver")

pytestmark = pytest.mark.timeout(60)

CALLS = {
    os: (
        *("mkdir", "open", "fstat", "chmod", "replace", "fsync", "close"),
        *("listdir", "scandir", "remove", "rmdir"),
    ),
    fcntl: ("flock",),
}
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ESTALE, errno.ENOENT)


class Faults:
    """Lets one call to the file system fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.number, self.count = -1, 0, 0
        for module, names in CALLS.items():
            for name in names:
                monkeypatch.setattr(module, name, self._failing(getattr(module, name)))

    def _failing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                if original is os.close:
                    original(*args)
                raise OSError(self.number, os.strerror(self.number))
            return original(*args, **kwargs)

        return call

    def fail(self, at: int, number: int) -> None:
        self.at, self.number, self.count = at, number, 0


def raised(call: Callable[..., Any], *args: Any) -> BaseException | None:
    """By the call, or by the next one that may tell."""
    try:
        call(*args)
        write_queue.wait("the test")
        write_queue.raise_failed()
    except BaseException as error:  # as DCP's own are
        return error
    return None


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_any_call_that_fails(
    behind: AsyncSave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "a.pt"
    faults = Faults(monkeypatch)
    at, failed = 0, 0
    while faults.count >= at:
        at += 1
        faults.fail(-1, 0)
        torch.save(at, path)
        faults.fail(at, number)
        error = raised(behind, -at, path)
        faults.at = -1
        value = torch.load(path)
        assert value == -at or (error is not None and value == at)
        if error is not None:
            failed += 1
            assert isinstance(error, type(OSError(number, ""))), at
            assert error.errno == number  # type: ignore[attr-defined]
        atomic_file.remove_abandoned(str(tmp_path))
        for left in tmp_path.glob(f"{atomic_file.PREFIX}*"):  # its removal was what failed
            shutil.rmtree(left)
    assert at > 10 and failed


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file may grow beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["a.pt", "ä.pt"])  # torch writes the second one through Python
def test_a_file_that_cannot_grow_is_never_there_in_part(
    behind: AsyncSave, tmp_path: Path, disk: Disk, name: str
) -> None:
    state = {"a": torch.arange(500.0), "b": [torch.ones(7)] * 2}
    path = tmp_path / name
    (tmp_path / "plain").mkdir()
    torch.save(state, path)
    whole, size = path.read_bytes(), path.stat().st_size
    for limit in (*range(0, size, 97), *range(size - 30, size + 2)):
        torch.save("old", path)
        old = path.read_bytes()
        with limited(limit):
            error = raised(behind, state, path)
            plain = raised(torch.save, state, tmp_path / "plain" / name)
        assert path.read_bytes() == (whole if limit >= size else old)
        assert (error is None) == (plain is None) == (limit >= size)
        if plain is not None:
            assert isinstance(error, type(plain)), (error, plain)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "plain"])


def test_a_folder_that_goes_while_it_is_written(
    behind: AsyncSave, tmp_path: Path, disk: Disk
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    disk.free.clear()
    behind(torch.ones(9), folder / "a.pt")
    behind(torch.ones(9), tmp_path / "b.pt")
    shutil.rmtree(folder)
    disk.free.set()
    write_queue.wait("the test")
    with pytest.raises(FileNotFoundError, check=has_code("background-write-failed")) as told:
        behind(1, tmp_path / "c.pt")
    assert isinstance(told.value, WriteFailed) and told.value.fields["path"] == f"{folder}/a.pt"
    write_queue.wait("the test")
    assert not folder.exists() and torch.load(tmp_path / "b.pt").sum() == 9
    with pytest.raises(RuntimeError, match="Parent"):  # at once, as without us
        behind(1, folder / "a.pt")


def test_what_is_raised_can_be_sent_to_another_process(
    behind: AsyncSave, disk: Disk, tmp_path: Path
) -> None:
    disk.error = PermissionError(errno.EACCES, "Permission denied")
    error = raised(behind, 1, tmp_path / "a.pt")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, PermissionError) and isinstance(again, WriteFailed)
    assert (str(again), again.errno, again.code) == (str(error), errno.EACCES, error.code)  # type: ignore[union-attr]
    assert again.fields["path"] == str(tmp_path / "a.pt")


def test_dcp_has_no_metadata_of_what_could_not_be_written(
    behind: AsyncSave, tmp_path: Path, disk: Disk
) -> None:
    def save(path: Path) -> None:
        state = {"a": torch.arange(500.0), "b": torch.ones(7)}
        dcp_save.save(state_dict_saver, torch_dcp.save, state, checkpoint_id=path)

    def plain(path: Path) -> None:
        torch_dcp.save({"a": torch.arange(500.0), "b": torch.ones(7)}, checkpoint_id=path)

    for limit in (0, 10, 900, 2100):
        with limited(limit):
            error = raised(save, tmp_path / f"{limit}")
            expected = raised(plain, tmp_path / f"plain-{limit}")
        assert expected is not None and isinstance(error, type(expected)), (error, expected)
        assert not (tmp_path / f"{limit}" / ".metadata").exists()
