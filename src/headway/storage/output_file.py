"""Files that a command writes where the user says: whole or not at all, and never over another."""

from __future__ import annotations

from pathlib import Path

from headway.errors import TargetUnwritable, UsageError
from headway.storage.atomic_write import write_atomically


def check_output(target: Path, *, force: bool) -> None:
    """Refuse early what would be refused later."""
    if target.is_dir():
        raise UsageError(f"{target} is a folder; name a file in it", code="target-is-folder")
    if target.exists() and not force:
        raise UsageError(
            f"{target} exists already; add --force to overwrite it", code="target-exists"
        )


def write_output(target: Path, content: bytes, *, force: bool) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    check_output(target, force=force)
    try:
        write_atomically(target, content)
    except OSError as error:
        reason = error.strerror or error
        raise TargetUnwritable(f"cannot write {target}: {reason}; name another file") from error
