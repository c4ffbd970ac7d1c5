"""Replace a small file atomically, or create it exclusively."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file so that readers see either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            if mode != 0o666:  # also if an earlier process has left the file
                os.fchmod(fd, mode)
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_exclusively(path: Path, content: str) -> bool:
    """Create a file with this content; False if it exists."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # unique over all hosts
    try:
        temporary.write_text(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # the file system has no hard links
            try:
                with path.open("x") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
