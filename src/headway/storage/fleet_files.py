"""Files of a fleet store, in a folder or behind a URL. Names are relative, with slashes."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from headway.errors import HeadwayError, UsageError
from headway.storage import remote


class FileEntry(NamedTuple):
    """An object with its size in bytes and its modification time."""

    name: str
    size: int
    modified_at: float


class FleetFiles(Protocol):
    """Objects that are written atomically and are durable once written."""

    url: str

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Create or replace an object; where supported, only the owner can read a private one."""

    def get(self, name: str) -> bytes:
        """The content of an object; FileNotFoundError if it does not exist."""

    def open(self, name: str) -> IO[bytes]:
        """Open an object for reading."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""

    def entries(self, prefix: str) -> Iterator[FileEntry]:
        """The objects below a prefix, in any order."""

    def path(self, name: str) -> str:
        """The path or URL of an object, for messages."""

    def fetch(self, names: Sequence[str], folder: Path) -> list[str]:
        """Local paths of objects; remote ones are downloaded into the folder."""

    def is_empty(self) -> bool:
        """Whether there are no objects."""


def open_fleet_files(url: str) -> FleetFiles:
    """Open a folder or a URL."""
    if "://" in url and not url.startswith("file://"):
        return RemoteFleetFiles(url)
    return LocalFleetFiles(Path(url.removeprefix("file://")))


class LocalFleetFiles:
    """Files in a local or mounted folder."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root.expanduser()
        if self._root.exists() and not self._root.is_dir():
            raise UsageError(f"{root} is a file; a store is a folder or a URL", code="not-a-store")

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Write to a temporary file, sync and rename it, and sync its folder."""
        path = self._root / name
        self._make_folder(path.parent)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync(path.parent)

    def _make_folder(self, folder: Path) -> None:
        """Create missing folders, and sync the parent of each."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for created in reversed(missing):
            created.mkdir(exist_ok=True)
            _sync(created.parent)

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        return (self._root / name).open("rb")

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def entries(self, prefix: str) -> Iterator[FileEntry]:
        """The objects below a prefix, including unfinished ones, whose names begin with a dot."""
        for folder, _, names in os.walk(self._root / prefix, onerror=_unless_gone):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(path)
                    relative = os.path.relpath(path, self._root).replace(os.sep, "/")
                    yield FileEntry(relative, status.st_size, status.st_mtime)

    def path(self, name: str) -> str:
        return str(self._root / name)

    def fetch(self, names: Sequence[str], folder: Path) -> list[str]:
        """Local files need no download."""
        return [str(self._root / name) for name in names]

    def is_empty(self) -> bool:
        """Whether the folder has no files; unfinished writes do not count."""
        return not self._root.is_dir() or all(
            entry.name.startswith(".") for entry in self._root.iterdir()
        )


class RemoteFleetFiles(remote.RemoteObjects):
    """Files behind a URL of fsspec."""

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Create or replace an object. `private` is ignored: permissions belong to the bucket."""
        with _store_errors(self.url):
            super().put(name, content)

    def get(self, name: str, most: int | None = None) -> bytes:
        with _store_errors(self.url):
            return super().get(name, most)

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._fs.open(f"{self._root}/{name}", "rb")
        return file

    def delete(self, name: str) -> None:
        with _store_errors(self.url):
            super().delete(name)

    def entries(self, prefix: str) -> Iterator[FileEntry]:
        with _store_errors(self.url):
            entries = list(self.list_objects(prefix))
        yield from (FileEntry(*entry) for entry in entries)

    def path(self, name: str) -> str:
        url: str = self._fs.unstrip_protocol(f"{self._root}/{name}")
        return url

    def fetch(self, names: Sequence[str], folder: Path) -> list[str]:
        """Download the objects, concurrently if the file system can; existing files are kept."""
        paths = [str(folder / name.replace("/", "-")) for name in names]
        missing = [(n, p) for n, p in zip(names, paths, strict=True) if not os.path.exists(p)]
        if missing:
            with _store_errors(self.url):
                self._fs.get([f"{self._root}/{n}" for n, _ in missing], [p for _, p in missing])
        return paths

    def is_empty(self) -> bool:
        self._fs.invalidate_cache()
        try:
            with _store_errors(self.url):
                return not self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return True


@contextlib.contextmanager
def _store_errors(url: str) -> Iterator[None]:
    """Convert errors of a remote file system to HeadwayError, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeadwayError(
            f"{url} cannot be reached: {reason}", code="store-unreachable"
        ) from error


def _unless_gone(error: OSError) -> None:
    """Raise errors of listing a folder, unless it no longer exists."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _sync(folder: Path) -> None:
    """Make created and renamed entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
