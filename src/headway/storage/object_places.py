"""Store named objects in a folder or behind a URL; each is written completely or not at all.

Names are relative, with slashes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headway.errors import FINE, Reason, UsageError
from headway.storage import remote
from headway.storage.chunks import DamagedData
from headway.storage.signing import Untrusted, path_untrusted_reason, stat_untrusted_reason

DRAFTS = "drafts"  # files being written; old ones were left by killed processes


class ObjectMissing(Exception):
    """No object has that name."""


class ObjectPlace(Protocol):
    """Named objects, each written completely or not at all."""

    url: str

    def read(self, name: str, max_bytes: int, *, owned_only: bool = False) -> bytes:
        """Read an object; ObjectMissing if there is none, DamagedData if larger than `max_bytes`.

        `owned_only`: raises Untrusted unless only this user could have written it.
        """

    def write(self, name: str, content: bytes) -> None:
        """Create or replace an object atomically."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is ignored."""

    def entries(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Yield name, size and modification time of each object whose path starts with a prefix."""

    def untrusted_reason(self) -> Reason:
        """Why unsigned objects from here cannot be trusted; empty if they can."""


def open_object_place(url: str) -> ObjectPlace:
    if "://" in url and not url.startswith("file://"):
        return RemoteObjectPlace(url)
    return FolderObjectPlace(Path(url.removeprefix("file://")))


class FolderObjectPlace:
    """Objects in a local or mounted folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()
        self.url = str(root)
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(
                f"{root} is a file; expected a folder or a URL", code="store-is-a-file"
            )

    def read(self, name: str, max_bytes: int, *, owned_only: bool = False) -> bytes:
        """Read an object; checks run on the open file, so that it cannot be replaced meanwhile."""
        path = self.root / name
        try:
            with open(path, "rb", opener=_open_nonblocking) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(name)
                reason = stat_untrusted_reason(status, path) if owned_only else FINE
                if reason:
                    raise Untrusted(reason, code=reason.code)
                return _limited(file.read(min(status.st_size, max_bytes) + 1), max_bytes)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(name) from None

    def write(self, name: str, content: bytes) -> None:
        """Create or replace an object atomically."""
        mode = self._make_folders(name)
        draft = self.root / DRAFTS / secrets.token_hex(16)
        try:
            with open(draft, "xb", opener=_open_private) as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode & 0o666)
                os.fsync(file.fileno())
            os.replace(draft, self.root / name)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def _make_folders(self, name: str) -> int:
        """Create the folders of an object with the mode of the store's root; returns that mode."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
        mode = stat.S_IMODE(self.root.stat().st_mode)
        for prefix in (DRAFTS, os.path.dirname(name)):
            folder = self.root
            for part in prefix.split("/"):
                folder = folder / part
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    folder.chmod(mode)
        return mode

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is ignored."""
        (self.root / name).unlink(missing_ok=True)

    def entries(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Yield name, size and modification time of each object whose path starts with a prefix."""
        for folder, _, names in os.walk(self.root / prefix, onerror=_ignore_missing):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
                        yield relative, status.st_size, status.st_mtime

    def untrusted_reason(self) -> Reason:
        """Why unsigned objects from here cannot be trusted; empty if they can."""
        for name in ("chunks", "archives"):
            reason = path_untrusted_reason(self.root / name)
            if reason:
                return reason
        return FINE


class RemoteObjectPlace:
    """Objects behind a URL that fsspec supports."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._objects = remote.RemoteObjects(url)

    def read(self, name: str, max_bytes: int, *, owned_only: bool = False) -> bytes:
        """Read an object; ObjectMissing if there is none, DamagedData if it is larger."""
        if owned_only:
            reason = self.untrusted_reason()
            raise Untrusted(reason, code=reason.code)
        try:
            return _limited(self._objects.get(name, max_bytes + 1), max_bytes)
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def write(self, name: str, content: bytes) -> None:
        """Create or replace an object; object stores do that atomically."""
        self._objects.put(name, content)

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is ignored."""
        self._objects.delete(name)

    def entries(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """Yield name, size and modification time of each object whose path starts with a prefix."""
        return self._objects.list_objects(prefix)

    def untrusted_reason(self) -> Reason:
        """Why unsigned objects from here cannot be trusted; empty if they can."""
        text = f"{self.url} is not a folder of your own and no key is given"
        return Reason(text, code="store-not-trusted")


def _limited(content: bytes, max_bytes: int) -> bytes:
    if len(content) > max_bytes:
        raise DamagedData(f"it is larger than {max_bytes} bytes", code="archive-too-large")
    return content


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting for a writer if the file was replaced by a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _ignore_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
