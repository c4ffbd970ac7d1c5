"""The run folder: `run.json`, `command.json`, `publish.json`, `journal/` and the results.

`publish.json` describes the publish of the last checkpoint: it is written when the publish job is
handed over, and again by that job when it ends. A run behind a URL is copied before it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway import redact
from headway.errors import HeadwayError, NotARun, RunNotFound
from headway.journal import file_access
from headway.storage.atomic_write import write_atomically

JOURNAL = "journal"
RUN_JSON = "run.json"
COMMAND_JSON = "command.json"  # the exact command, for its owner only: it may hold secrets
PUBLISH_JSON = "publish.json"
PUBLISH_SCHEMA = 1
LEDGER_JSON = "ledger.json"
REPORT_HTML = "report.html"


def find_run(path: str | os.PathLike[str]) -> Path:
    """Return the run folder at `path`; UsageError if there is none."""
    folder = Path(path)
    if not folder.exists():
        raise RunNotFound(f"there is no run at {folder}; type `ls headway` to see your runs")
    if not folder.is_dir() or not (folder / JOURNAL).is_dir():
        raise NotARun(
            f"{folder} is not a run folder (it has no {JOURNAL}/); "
            "create one with `headway run -- YOUR COMMAND`"
        )
    return folder


def read_identity(folder: Path) -> dict[str, Any]:
    """The content of run.json; empty if it is missing or damaged."""
    try:
        content = json.loads(file_access.read_file(folder / RUN_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_command(folder: Path) -> list[str]:
    """The exact command of a run; for other users the one in run.json, without secrets."""
    try:
        fd = os.open(folder / COMMAND_JSON, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, encoding="utf-8") as file:
            status = os.fstat(fd)
            own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            command = json.load(file) if own else None
    except (OSError, ValueError):
        command = None
    if not isinstance(command, list):
        command = read_identity(folder).get("command")
    return [str(word) for word in command] if isinstance(command, list) else []


def write_command(folder: Path, command: Sequence[str]) -> None:
    """Write the exact command, for later launches of the run."""
    write_atomically(folder / COMMAND_JSON, json.dumps(list(command)) + "\n", mode=0o600)


def read_publish_note(folder: Path) -> dict[str, Any]:
    """Read publish.json; empty if it cannot be read."""
    try:
        content = json.loads(file_access.read_file(folder / PUBLISH_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and content.get("schema") == PUBLISH_SCHEMA else {}


def write_publish_note(folder: Path, fields: dict[str, Any]) -> None:
    """Write publish.json, replacing an earlier one."""
    content = json.dumps({"schema": PUBLISH_SCHEMA, **redact.data(fields)}, indent=1) + "\n"
    write_atomically(folder / PUBLISH_JSON, content)


def fetch_run(url: str, folder: Path) -> None:
    """Copy the files that a ledger is computed from: run.json, publish.json and the journals."""
    from headway.storage.remote import filesystem

    fs, root = filesystem(url)
    try:
        _copy_run(fs, root.rstrip("/"), folder)
    except FileNotFoundError:
        raise RunNotFound(f"there is no run at {url}; check the URL") from None
    except Exception as error:  # remote file systems raise all kinds of exceptions
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeadwayError(f"{url} cannot be reached: {reason}", code="run-unreachable") from error


def _copy_run(fs: Any, root: str, folder: Path) -> None:
    (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
    for name in fs.find(f"{root}/{JOURNAL}", maxdepth=1):
        fs.get_file(name, str(folder / JOURNAL / name.rpartition("/")[2]))
    for name in (RUN_JSON, PUBLISH_JSON):
        with contextlib.suppress(FileNotFoundError):
            fs.get_file(f"{root}/{name}", str(folder / name))
    if not any((folder / JOURNAL).iterdir()):
        raise FileNotFoundError(root)
