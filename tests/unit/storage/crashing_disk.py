"""A disk that may lose whatever was not synced: names, and what is in files.

At a crash, of the changes to a folder since it was last synced any may have reached the disk and
any may not, each for itself; a rename is one change. A file has what was synced, or what was
written since, or the beginning of that and zeros.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headway.storage import disk


class Crash(BaseException):
    """The process is gone."""


class File:
    def __init__(self) -> None:
        self.live = b""
        self.safe = b""

    def lose(self, chance: random.Random) -> None:
        if self.live == self.safe:
            return
        cut = chance.randint(0, len(self.live))
        torn = self.live[:cut] + bytes(len(self.live) - cut)
        self.live = self.safe = chance.choice([self.safe, self.live, torn])


class Folder:
    def __init__(self) -> None:
        self.live: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}
        self.unsafe: list[dict[str, File | Folder | None]] = []

    def change(self, names: dict[str, File | Folder | None]) -> None:
        _apply(self.live, names)
        self.unsafe.append(names)

    def sync(self) -> None:
        self.safe = dict(self.live)
        self.unsafe.clear()

    def lose(self, chance: random.Random) -> None:
        for names in self.unsafe:
            if chance.random() < 0.5:
                _apply(self.safe, names)
        self.unsafe.clear()
        self.live = dict(self.safe)
        for node in self.live.values():
            node.lose(chance)


def _apply(entries: dict[str, File | Folder], names: dict[str, File | Folder | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Disk:
    """In the place of headway.storage.disk."""

    def __init__(self) -> None:
        self.root = Folder()
        self.left = -1  # calls until the process is killed; never if below 0
        self._open: dict[int, File] = {}
        self._locks: dict[int, tuple[File, bool]] = {}
        self._next = 1000

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in vars(Disk):
            if not name.startswith("_") and hasattr(disk, name):
                patch.setattr(disk, name, getattr(self, name))

    def die(self) -> None:
        """The process has gone; the machine has not."""
        self._open.clear()
        self._locks.clear()
        self.left = -1

    def lose_power(self, chance: random.Random) -> None:
        self.die()
        self.root.lose(chance)

    def _tick(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def _node(self, path: str) -> File | Folder:
        node: File | Folder = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Folder):
                raise NotADirectoryError(path)
            if name not in node.live:
                raise FileNotFoundError(path)
            node = node.live[name]
        return node

    def _above(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        node = self._node(above) if above.strip("/") else self.root
        assert isinstance(node, Folder)
        return node, name

    def _file(self, path: str) -> File:
        node = self._node(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(path)
        return node

    def _handle(self, file: File) -> int:
        self._next += 1
        self._open[self._next] = file
        return self._next

    def create(self, path: str) -> int:
        self._tick()
        folder, name = self._above(path)
        if name not in folder.live:
            folder.change({name: File()})
        file = self._file(path)
        file.live = b""
        return self._handle(file)

    def set_direct_io(self, fd: int, past: bool) -> bool:
        return True

    def write_at(self, fd: int, data: bytes | memoryview, at: int) -> None:
        self._tick()
        file, new = self._open[fd], bytes(data)
        file.live = file.live[:at].ljust(at, b"\0") + new + file.live[at + len(new) :]

    def start_writeback(self, fd: int, at: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        self._tick()
        self._open[fd].safe = self._open[fd].live

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        self._locks.pop(fd, None)

    def make_folder(self, path: str) -> None:
        self._tick()
        folder, name = self._above(path)
        if name in folder.live:
            raise FileExistsError(path)
        folder.change({name: Folder()})

    def sync_folder(self, path: str) -> None:
        self._tick()
        node = self._node(path) if path.strip("/") else self.root
        assert isinstance(node, Folder)
        node.sync()

    def rename(self, old: str, new: str) -> None:
        self._tick()
        folder, name = self._above(old)
        onto, other = self._above(new)
        assert folder is onto
        node, there = self._node(old), folder.live.get(other)
        if isinstance(node, Folder) and there is not None:
            raise OSError(39, "Directory not empty", new)
        folder.change({name: None, other: node})

    def unlink(self, path: str) -> None:
        self._tick()
        self._file(path)
        folder, name = self._above(path)
        folder.change({name: None})

    def remove_folder(self, path: str) -> None:
        self._tick()
        node = self._node(path)
        assert isinstance(node, Folder) and not node.live
        folder, name = self._above(path)
        folder.change({name: None})

    def names(self, folder: str) -> list[str]:
        node = self._node(folder)
        if not isinstance(node, Folder):
            raise NotADirectoryError(folder)
        return list(node.live)

    def is_folder(self, path: str) -> bool:
        try:
            return isinstance(self._node(path), Folder)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def size(self, path: str) -> int:
        return len(self._file(path).live)

    def changed(self, path: str) -> float:
        return 0.0

    def read(self, path: str) -> bytes:
        return self._file(path).live

    def pieces(self, path: str) -> Iterator[memoryview]:
        yield memoryview(self._file(path).live)

    def lock(self, path: str, *, shared: bool = False, wait: bool = True) -> int:
        folder, name = self._above(path)
        if name not in folder.live:
            self._tick()
            folder.change({name: File()})
        file = self._file(path)
        if any(held is file and not (shared and both) for held, both in self._locks.values()):
            assert not wait, "this would wait for ever"
            raise disk.Busy(path)
        fd = self._handle(file)
        self._locks[fd] = (file, shared)
        return fd
