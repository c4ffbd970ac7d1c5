"""Write small files so that a reader sees the old content or the new; create one exclusively."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """A reader sees the old file or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            if mode != 0o666:  # also where an earlier process has left the file
                os.fchmod(fd, mode)
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_exclusively(path: Path, content: str) -> bool:
    """Make a file with this content; False if it is there already, made by whomever."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # nobody else's, on any host
    try:
        temporary.write_text(content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # no hard links here
            try:
                with path.open("x") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
