"""The run folder: `run.json`, `journal/`, and what is computed from them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import NotARun, RunNotFound
from headway.journal import files

JOURNAL = "journal"
RUN_JSON = "run.json"
COMMAND_JSON = "command.json"  # the exact command, for its owner only: it may hold secrets
LEDGER_JSON = "ledger.json"
REPORT_HTML = "report.html"


def find_run(path: str | os.PathLike[str]) -> Path:
    """The run folder at `path`, or one sentence that says what is there instead."""
    folder = Path(path)
    if not folder.exists():
        raise RunNotFound(f"there is no run at {folder}; type `ls headway` to see your runs")
    if not folder.is_dir() or not (folder / JOURNAL).is_dir():
        raise NotARun(
            f"{folder} is not a run folder (it has no {JOURNAL}/); "
            "make one with `headway run -- YOUR COMMAND`"
        )
    return folder


def read_identity(folder: Path) -> dict[str, Any]:
    """What run.json says; empty when it is missing or torn."""
    try:
        found = json.loads(files.read_file(folder / RUN_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_command(folder: Path) -> list[str]:
    """The exact command of a run; as run.json has it, without its secrets, for anybody else."""
    try:
        fd = os.open(folder / COMMAND_JSON, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, encoding="utf-8") as file:
            known = os.fstat(fd)
            ours = stat.S_ISREG(known.st_mode) and known.st_uid == os.geteuid()
            found = json.load(file) if ours else None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, list):
        found = read_identity(folder).get("command")
    return [str(word) for word in found] if isinstance(found, list) else []


def write_command(folder: Path, command: Sequence[str]) -> None:
    """For joining the run, and for running it again."""
    write_atomically(folder / COMMAND_JSON, json.dumps(list(command)) + "\n", mode=0o600)


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """A reader sees the old file or the new one, never half of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            if mode != 0o666:  # also where an earlier process has left the file
                os.fchmod(fd, mode)
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_exclusively(path: Path, content: str) -> bool:
    """Make a file with this content; False if it is there already, made by whomever."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # nobody else's, on any host
    try:
        aside.write_text(content)
        try:
            os.link(aside, path)
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
            aside.unlink()
