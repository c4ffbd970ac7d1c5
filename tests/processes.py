"""Processes that may still run after a test."""

from __future__ import annotations

import os
from pathlib import Path


def working_in(folder: Path) -> list[str]:
    """The command lines of processes whose working directory is in a folder."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                commands.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return commands
