"""Damage the newest checkpoint of a folder, as a bad disk or an interrupted write would."""

from __future__ import annotations

import os

MIN_BYTES = 1024  # bytes; a smaller file is not a checkpoint but metadata
UNFINISHED = (".tmp", ".partial")


def newest_checkpoint(folder: str) -> str | None:
    """The newest file there, or the largest file of the newest folder; None if there is none."""
    entries = [(changed, entry) for entry in _entries(folder) if (changed := _changed_at(entry))]
    if not entries:
        return None
    _, last = max(entries, key=lambda pair: pair[0])
    if not last.is_dir():
        return last.path
    files = [entry for entry in _entries(last.path) if entry.is_file() and _changed_at(entry)]
    if not files:
        return newest_checkpoint(last.path)
    return max(files, key=lambda entry: entry.stat().st_size).path


def damage_file(path: str, how: str) -> None:
    """Flip one byte in the middle, cut off the second half, or fill the file with zeros.

    The modification time stays: a disk that corrupts data does not change it either.
    """
    before = os.stat(path)
    with open(path, "r+b") as file:
        if how == "truncate":
            file.truncate(before.st_size // 2)
        elif how == "zero":
            file.write(bytes(before.st_size))
        else:
            file.seek(before.st_size // 2)
            byte = file.read(1)
            file.seek(before.st_size // 2)
            file.write(bytes([byte[0] ^ 0xFF]))
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.endswith(UNFINISHED)]
    except OSError:
        return []


def _changed_at(entry: os.DirEntry[str]) -> int:
    """Modification time of a checkpoint, or of the newest one in a folder; 0 if there is none."""
    if entry.is_dir(follow_symlinks=False):
        return max(map(_changed_at, _entries(entry.path)), default=0)
    try:
        status = entry.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if entry.is_file() and status.st_size >= MIN_BYTES else 0
