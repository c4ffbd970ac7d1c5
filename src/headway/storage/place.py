"""Storage locations: a local folder, or a URL through fsspec. Names may contain slashes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Protocol

from headway.errors import SaveFailed, UsageError
from headway.storage import disk, remote
from headway.storage.output import USE_PAGE_CACHE, DirectFile, ObjectFile, Output, PageCacheFile

LOCK = ".lock"


@contextlib.contextmanager
def os_errors_as_save_failed(what: str) -> Iterator[None]:
    """What the disk says, as one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise SaveFailed(f"{what}: {reason}", code="store-failed", errno=error.errno) from error


class Place(Protocol):
    """Folders with files. What is written is there once the call returns, also after a crash."""

    url: str
    can_rename: bool  # a folder can be given another name at once

    def path(self, name: str) -> str:
        """The name for others: a path, or a URL."""

    def list_names(self, folder: str = "") -> list[str]:
        """What is in a folder; nothing if there is none."""

    def size(self, name: str) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""

    def modified_at(self, name: str) -> float:
        """When something in it was last changed."""

    def read(self, name: str) -> bytes:
        """All of a file."""

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file piece by piece; each is overwritten by the next."""

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, at once."""

    def create(self, name: str) -> Output:
        """Begin a file."""

    def make_folder(self, folder: str = "") -> None:
        """Make a folder, and those above it."""

    def sync(self, folder: str = "") -> None:
        """What was put into the folder stays there."""

    def delete(self, name: str) -> None:
        """Take a file away; nothing happens if it is gone."""

    def delete_folder(self, folder: str) -> None:
        """Take all of it away; a checkpoint loses its manifest first."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else changes which checkpoints there are meanwhile, where that can be had."""


def open_place(url: str | os.PathLike[str]) -> Place:
    """The place that a path or URL names."""
    text = os.fspath(url)
    if "://" in text and not text.startswith("file://"):
        return FsspecPlace(text)
    return LocalPlace(text.removeprefix("file://"))


class LocalPlace:
    """A folder of this machine, or one that is mounted."""

    can_rename = True

    def __init__(self, root: str) -> None:
        self.url = self.root = os.path.abspath(os.path.expanduser(root))
        if os.path.isfile(self.root):
            raise UsageError(
                f"{root} is a file; checkpoints need a folder or a URL", code="store-is-a-file"
            )

    def path(self, name: str) -> str:
        """Its path."""
        return f"{self.root}/{name}" if name else self.root

    def list_names(self, folder: str = "") -> list[str]:
        """What is in a folder; nothing if there is none."""
        try:
            return disk.names(self.path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""
        return disk.size(self.path(name))

    def modified_at(self, name: str) -> float:
        """When something in it was last changed."""
        path = self.path(name)
        paths = [path, *(f"{path}/{one}" for one in self.list_names(name))]
        return max(disk.changed(one) for one in paths)

    def read(self, name: str) -> bytes:
        """All of a file."""
        return disk.read(self.path(name))

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file piece by piece; each is overwritten by the next."""
        return disk.pieces(self.path(name))

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file, at once."""
        folder, _, last = self.path(name).rpartition("/")
        disk.replace_file(f"{folder}/{last}", content, f"{folder}/.new-{last}-{os.getpid()}")

    def create(self, name: str) -> Output:
        """Begin a file."""
        fd = disk.create(self.path(name))
        return (
            DirectFile(fd)
            if not USE_PAGE_CACHE and disk.set_direct_io(fd, True)
            else PageCacheFile(fd)
        )

    def make_folder(self, folder: str = "") -> None:
        """Make a folder, and those above it."""
        disk.make_folders(self.path(folder))

    def sync(self, folder: str = "") -> None:
        """What was put into the folder stays there."""
        disk.sync_folder(self.path(folder))

    def delete(self, name: str) -> None:
        """Take a file away; nothing happens if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(self.path(name))

    def delete_folder(self, folder: str) -> None:
        """Take all of it away."""
        disk.remove_tree(self.path(folder))

    def rename(self, old: str, new: str) -> None:
        """Give a folder another name, for good."""
        disk.rename(self.path(old), self.path(new))
        self.sync()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else changes which checkpoints there are meanwhile, where that can be had."""
        try:
            fd = disk.lock(self.path(LOCK))
        except disk.NoLocks:
            yield
            return
        try:
            yield
        finally:
            disk.close(fd)


class FsspecPlace:
    """Anything that fsspec knows; files are there whole or not at all."""

    can_rename = False

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, root = remote.filesystem(url)
        self._root = root.rstrip("/")

    def path(self, name: str) -> str:
        """Its URL."""
        return f"{self.url}/{name}" if name else self.url

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def list_names(self, folder: str = "") -> list[str]:
        """What is in a folder; nothing if there is none."""
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._at(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def size(self, name: str) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""
        return int(self._fs.size(self._at(name)))

    def modified_at(self, name: str) -> float:
        """When something in it was last changed."""
        self._fs.invalidate_cache()
        entries = self._fs.find(self._at(name), detail=True).values()
        return max(map(remote.modified_at, entries), default=0.0)

    def read(self, name: str) -> bytes:
        """All of a file."""
        content: bytes = self._fs.cat_file(self._at(name))
        return content

    def read_range(self, name: str, at: int, size: int) -> bytearray:
        """So many bytes from there, or as many as there are."""
        return bytearray(self._fs.cat_file(self._at(name), start=at, end=at + size))

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file piece by piece."""
        with self._fs.open(self._at(name), "rb") as file:
            while block := file.read(disk.PIECE):
                yield memoryview(block)

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file; object stores do that at once."""
        self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._at(name), content)

    def create(self, name: str) -> Output:
        """Begin a file."""
        self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        return ObjectFile(self._fs.open(self._at(name), "wb"))

    def make_folder(self, folder: str = "") -> None:
        """Make a folder, where there are such things."""
        self._fs.makedirs(self._at(folder), exist_ok=True)

    def sync(self, folder: str = "") -> None:
        """Nothing to do: what was put there stays there."""

    def delete(self, name: str) -> None:
        """Take a file away; nothing happens if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def delete_folder(self, folder: str) -> None:
        """Take all of it away; a checkpoint loses its manifest first."""
        for name in sorted(self.list_names(folder), key=lambda name: name != "manifest.json"):
            self.delete(f"{folder}/{name}")
        with contextlib.suppress(FileNotFoundError, NotImplementedError, OSError):
            self._fs.rmdir(self._at(folder))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """There is no lock: saves have names of their own, and none is ever replaced."""
        yield
