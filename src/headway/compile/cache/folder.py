"""Local cache folder of a job: which files are worth archiving, and which were used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from headway.compile.cache.manifest import File, Manifest
from headway.storage.signing import stat_untrusted_reason

DAY = 86400
NEVER_READ_S = 1  # access time set on restored files; a later one means that the file was read
# Locks, partial files, and what is faster to rebuild than to transfer.
SKIPPED_FOLDERS = ("locks", "precompiled_headers", "tmp", "__pycache__")
SKIPPED_ENDS = (".lock", ".tmp", ".gch", ".pch", ".o", ".pid")
# Triton's group files name their members by absolute path.
GROUP_PREFIX = "__grp__"
FOLDER_PLACEHOLDER = b"[headway-cache-folder]"


class CacheFolder:
    """A cache folder, and the files that an archive restored there.

    `owned`: no other job uses the folder.
    """

    def __init__(self, root: Path, *, owned: bool = True) -> None:
        self.root = root
        self.owned = owned
        self.restored: dict[str, File] = {}
        self._stamps: dict[str, tuple[int, int]] = {}  # of files that are in an archive
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = stat_untrusted_reason(root.lstat(), root) if owned else ""
        if reason:  # its files are executed, and others may be able to guess its name
            raise PermissionError(errno.EACCES, reason, str(root))
        # Whether the file system records access times (if not, all files count as used), and its
        # clock: in a folder that is not owned, older files belong to other jobs.
        self.tracks_atime, now = _probe_file_system(root)
        self.since = 0 if owned else now

    def files(self) -> list[str]:
        """Paths of the files to archive, sorted."""
        paths = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not _is_skipped_folder(name)]
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), self.root)
                if not _is_skipped_file(name) and self._is_from_job(path):
                    paths.append(path)
        return sorted(paths)

    def _is_from_job(self, path: str) -> bool:
        status = self._stat(path)
        return status is not None and (status.st_mtime_ns >= self.since or path in self.restored)

    def _stat(self, path: str) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            status = os.lstat(self.root / path)
            return status if stat.S_ISREG(status.st_mode) else None
        return None

    def describe(self, path: str, today: int) -> File | None:
        """The manifest entry of a file; None if it no longer exists."""
        status = self._stat(path)
        return None if status is None else self._file(path, status, today)

    def read(self, path: str, today: int) -> tuple[File, bytes] | None:
        """The manifest entry and content of a file; None also if it is incomplete."""
        with (
            contextlib.suppress(OSError),
            open(self.root / path, "rb", opener=_open_noatime) as file,
        ):
            status = os.fstat(file.fileno())
            content = file.read()
            if len(content) != status.st_size or not (
                path[-3:] != ".so" or is_complete_library(content)
            ):
                return None
            self._stamps[path] = _stamp(status)
            if _is_group_file(path):
                content = content.replace(self._json_path(), FOLDER_PLACEHOLDER)
            return replace(self._file(path, status, today), size=len(content)), content
        return None

    def _json_path(self) -> bytes:
        """The folder's path, escaped as in JSON."""
        return json.dumps(str(self.root.absolute()))[1:-1].encode()

    def _file(self, path: str, status: os.stat_result, today: int) -> File:
        restored = self.restored.get(path)
        used = today if restored is None or self._was_read(status) else restored.used
        return File(path, status.st_size, bool(status.st_mode & 0o100), used)

    def _was_read(self, status: os.stat_result) -> bool:
        return not self.tracks_atime or status.st_atime > NEVER_READ_S

    def used(self, path: str) -> bool:
        """Whether this job wrote or read the file."""
        status = self._stat(path)
        return status is not None and (path not in self.restored or self._was_read(status))

    def changed(self, path: str) -> bool:
        """Whether the file differs from the archived one."""
        status = self._stat(path)
        return status is not None and self._stamps.get(path) != _stamp(status)

    def restore(
        self,
        manifest: Manifest,
        stream: Iterable[bytes],
        select: Callable[[str], bool] = lambda path: True,
    ) -> int:
        """Write the missing files of an archive, all or none; returns how many were written.

        If none is missing, the stream is not read, so nothing is fetched.
        """
        reader = _Reader(stream)
        files = [file for file in manifest.files if select(file.path)]
        missing = {file.path for file in files if not os.path.lexists(self.root / file.path)}
        written: list[str] = []
        try:
            for file in manifest.files if missing else ():
                content = reader.read(file.size)
                if file.path in missing:
                    if _is_group_file(file.path):
                        content = content.replace(FOLDER_PLACEHOLDER, self._json_path())
                    self._write_file(self.root / file.path, content, file.executable)
                    written.append(file.path)
        except BaseException:
            for path in written:
                with contextlib.suppress(OSError):
                    os.unlink(self.root / path)
            raise
        for file in files:
            self.restored.setdefault(file.path, file)
            status = self._stat(file.path)
            if status is not None:
                self._stamps.setdefault(file.path, _stamp(status))
        return len(written)

    def remove_truncated(self) -> None:
        """Delete incomplete libraries that a killed build left behind."""
        for path in self.files():
            if path.endswith(".so") and self.changed(path):
                with contextlib.suppress(OSError), open(self.root / path, "rb") as file:
                    if not is_complete_library(file.read()):
                        os.unlink(self.root / path)

    def _write_file(self, path: Path, content: bytes, executable: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with open(handle, "wb") as file:
                file.write(content)
                os.fchmod(handle, 0o755 if executable else 0o644)
            modified_ns = os.stat(draft).st_mtime_ns
            os.utime(draft, ns=(NEVER_READ_S * 10**9, modified_ns))
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise


class _Reader:
    """Read exact numbers of bytes from a stream of pieces."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = iter(stream)
        self._piece = memoryview(b"")

    def read(self, size: int) -> bytes:
        parts = []
        while size:
            if not self._piece:
                self._piece = memoryview(next(self._stream))
            part, self._piece = self._piece[:size], self._piece[size:]
            size -= len(part)
            parts.append(part)
        return b"".join(parts)


def is_complete_library(content: bytes) -> bool:
    """Whether a shared library is complete: linkers write the table at its end last."""
    if len(content) < 64 or content[:5] != b"\x7fELF\2":
        return False
    order = "<" if content[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", content, 40)
    size, count = struct.unpack_from(f"{order}HH", content, 58)
    return bool(0 < table <= len(content) - size * count)


def _is_group_file(path: str) -> bool:
    return os.path.basename(path).startswith(GROUP_PREFIX)


def _is_skipped_file(name: str) -> bool:
    return name.startswith(".") or name.endswith(SKIPPED_ENDS) or not name.isprintable()


def _is_skipped_folder(name: str) -> bool:
    return name.startswith((".", "tmp.")) or name in SKIPPED_FOLDERS or not name.isprintable()


def _probe_file_system(root: Path) -> tuple[bool, int]:
    """Whether the file system records access times, and the current time of its clock."""
    with tempfile.NamedTemporaryFile(dir=root, prefix=".", suffix=".tmp") as file:
        file.write(b"x")
        file.flush()
        modified_ns = os.stat(file.name).st_mtime_ns
        os.utime(file.name, ns=(NEVER_READ_S * 10**9, modified_ns))
        Path(file.name).read_bytes()
        return os.stat(file.name).st_atime > NEVER_READ_S, modified_ns


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _open_noatime(path: str, flags: int) -> int:
    """Open without changing the access time: archiving a file does not count as using it."""
    flags |= os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:
        return os.open(path, flags)
