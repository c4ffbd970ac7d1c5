"""Pulse pages in the memory of this host, for run folders from which pages must not be mapped.

A page that is mapped from a file server raises SIGBUS in the job once the server does not answer,
and reading it may send a request. So the processes of this host have their pages in a folder of
/dev/shm. The folder also shows which processes record, and the run folder gets copies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "headway-pages-"
SUFFIX = ".pulse"
LOCK = "lock"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a space in /proc/self/mountinfo
# Local file systems: a page that is mapped from one of them is in memory. Copy-on-write file
# systems are not listed: with a full disk, a store into such a page raises SIGBUS.
LOCAL_FILE_SYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"}
)


class PulsePages:
    """The folder of one launcher; every page in it is copied to the journal folder."""

    def __init__(self, journal: Path, memory: Path) -> None:
        """Raises OSError if there is no room in memory."""
        self.journal = journal
        _remove_dead(memory)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=memory))
        new = self.folder / f"{LOCK}.new"
        self._lock = new.open("wb")  # held while this process lives
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.folder / LOCK)
        self._copied: dict[str, bytes] = {}

    def names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self.folder) if name.endswith(SUFFIX)}
        except OSError:
            return set()

    def copy(self, name: str) -> None:
        """Copy one page, as it is now, to the journal folder."""
        with contextlib.suppress(OSError):
            content = (self.folder / name).read_bytes()
            if content == self._copied.get(name):
                return
            fd = os.open(self.journal / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)
            self._copied[name] = content

    def copy_all(self) -> None:
        for name in self.names():
            self.copy(name)

    def close(self) -> None:
        """Copy all pages and remove the folder; no process of this launcher records any more."""
        self.copy_all()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def make_pages(journal: Path) -> PulsePages | None:
    """Pages in memory; None if the run folder is local or there is no room in memory."""
    if file_system(journal) in LOCAL_FILE_SYSTEMS:
        return None
    try:
        return PulsePages(journal, MEMORY)
    except OSError:
        return None


def file_system(path: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that a path is on; empty if unknown."""
    target = os.path.realpath(path)
    kind, length = "", -1
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                mount = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), left.split(" ")[4])
                mount = mount.rstrip("/")
                if len(mount) >= length and f"{target}/".startswith(f"{mount}/"):
                    kind, length = right.split(" ")[0], len(mount)
    except (OSError, IndexError):
        return ""
    return kind


def page_of(journal: Path, pages: PulsePages | None, name: str) -> str:
    """The page of that journal: in memory unless there was no room."""
    page = name.removesuffix(".jsonl") + SUFFIX
    if pages is not None and (pages.folder / page).exists():
        return str(pages.folder / page)
    return str(journal / page)


def _remove_dead(memory: Path) -> None:
    """Remove folders of killed launchers of this user."""
    for folder in memory.glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError), (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
