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
    """Turn OSError into SaveFailed with a message."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise SaveFailed(f"{what}: {reason}", code="store-failed", errno=error.errno) from error


class Place(Protocol):
    """Folders with files. Writes are durable when a call returns."""

    url: str
    can_rename: bool  # folders can be renamed atomically

    def path(self, name: str) -> str:
        """The full path or URL."""

    def list_names(self, folder: str = "") -> list[str]:
        """The names in a folder; empty if it does not exist."""

    def size(self, name: str) -> int:
        """Size of a file; FileNotFoundError if it does not exist."""

    def modified_at(self, name: str) -> float:
        """When anything inside was last modified."""

    def read(self, name: str) -> bytes:
        """The content of a file."""

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file in blocks; each block is overwritten by the next."""

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file atomically."""

    def create(self, name: str) -> Output:
        """Create a file to be written sequentially."""

    def make_folder(self, folder: str = "") -> None:
        """Create a folder and its parents."""

    def sync(self, folder: str = "") -> None:
        """Make the names in a folder durable."""

    def delete(self, name: str) -> None:
        """Delete a file; ignored if it does not exist."""

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its content; the manifest of a checkpoint first."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock on the set of checkpoints, where locks exist."""


def open_place(url: str | os.PathLike[str]) -> Place:
    """The place at a path or URL."""
    text = os.fspath(url)
    if "://" in text and not text.startswith("file://"):
        return FsspecPlace(text)
    return LocalPlace(text.removeprefix("file://"))


class LocalPlace:
    """A local or mounted folder."""

    can_rename = True

    def __init__(self, root: str) -> None:
        self.url = self.root = os.path.abspath(os.path.expanduser(root))
        if os.path.isfile(self.root):
            raise UsageError(
                f"{root} is a file; a checkpoint store must be a folder or a URL",
                code="store-is-a-file",
            )

    def path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def list_names(self, folder: str = "") -> list[str]:
        """The names in a folder; empty if it does not exist."""
        try:
            return disk.names(self.path(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int:
        """Size of a file; FileNotFoundError if it does not exist."""
        return disk.size(self.path(name))

    def modified_at(self, name: str) -> float:
        """When anything inside was last modified."""
        path = self.path(name)
        paths = [path, *(f"{path}/{path_}" for path_ in self.list_names(name))]
        return max(disk.changed(path_) for path_ in paths)

    def read(self, name: str) -> bytes:
        return disk.read(self.path(name))

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file in blocks; each block is overwritten by the next."""
        return disk.pieces(self.path(name))

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file atomically."""
        folder, _, last = self.path(name).rpartition("/")
        disk.replace_file(f"{folder}/{last}", content, f"{folder}/.new-{last}-{os.getpid()}")

    def create(self, name: str) -> Output:
        """Create a file to be written sequentially."""
        fd = disk.create(self.path(name))
        return (
            DirectFile(fd)
            if not USE_PAGE_CACHE and disk.set_direct_io(fd, True)
            else PageCacheFile(fd)
        )

    def make_folder(self, folder: str = "") -> None:
        """Create a folder and its parents."""
        disk.make_folders(self.path(folder))

    def sync(self, folder: str = "") -> None:
        """Make the names in a folder durable."""
        disk.sync_folder(self.path(folder))

    def delete(self, name: str) -> None:
        """Delete a file; ignored if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(self.path(name))

    def delete_folder(self, folder: str) -> None:
        disk.remove_tree(self.path(folder))

    def rename(self, old: str, new: str) -> None:
        """Rename a folder durably."""
        disk.rename(self.path(old), self.path(new))
        self.sync()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock on the set of checkpoints, if the file system has locks."""
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
    """A URL of fsspec; files are written completely or not at all."""

    can_rename = False

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, root = remote.filesystem(url)
        self._root = root.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def list_names(self, folder: str = "") -> list[str]:
        """The names in a folder; empty if it does not exist."""
        self._fs.invalidate_cache()
        try:
            paths = self._fs.ls(self._at(folder), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def size(self, name: str) -> int:
        """Size of a file; FileNotFoundError if it does not exist."""
        return int(self._fs.size(self._at(name)))

    def modified_at(self, name: str) -> float:
        """When anything inside was last modified."""
        self._fs.invalidate_cache()
        entries = self._fs.find(self._at(name), detail=True).values()
        return max(map(remote.modified_at, entries), default=0.0)

    def read(self, name: str) -> bytes:
        content: bytes = self._fs.cat_file(self._at(name))
        return content

    def read_range(self, name: str, at: int, size: int) -> bytearray:
        """Read that many bytes, or fewer at the end of the file."""
        return bytearray(self._fs.cat_file(self._at(name), start=at, end=at + size))

    def read_blocks(self, name: str) -> Iterator[memoryview]:
        """A file in blocks."""
        with self._fs.open(self._at(name), "rb") as file:
            while block := file.read(disk.PIECE):
                yield memoryview(block)

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file; object stores do that atomically."""
        self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._at(name), content)

    def create(self, name: str) -> Output:
        """Create a file to be written sequentially."""
        self._fs.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        return ObjectFile(self._fs.open(self._at(name), "wb"))

    def make_folder(self, folder: str = "") -> None:
        """Create a folder, if the store has folders."""
        self._fs.makedirs(self._at(folder), exist_ok=True)

    def sync(self, folder: str = "") -> None:
        """Nothing to do: writes are durable."""

    def delete(self, name: str) -> None:
        """Delete a file; ignored if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and its content; the manifest of a checkpoint first."""
        for name in sorted(self.list_names(folder), key=lambda name: name != "manifest.json"):
            self.delete(f"{folder}/{name}")
        with contextlib.suppress(FileNotFoundError, NotImplementedError, OSError):
            self._fs.rmdir(self._at(folder))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """No lock: saves have unique names, and none is ever replaced."""
        yield
