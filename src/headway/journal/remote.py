"""Run folders behind a URL, through fsspec where it is installed."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.errors import MissingExtra, RunNotFound, UsageError


def filesystem(url: str) -> tuple[Any, str]:
    """The file system behind a URL and the path on it."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtra(f"a URL such as {url} needs fsspec; type: pip install fsspec") from None
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        return found
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot use {url}: {error}") from None


def changed(info: dict[str, Any]) -> float:
    """When a file was: fsspec's file systems do not agree on the word; what is not told is new."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return time.time()


def fetch(url: str, folder: Path) -> None:
    """Copy what a ledger is computed from: run.json and the journals."""
    fs, root = filesystem(url)
    try:
        names = [name for name in fs.find(root) if name.rpartition("/")[2] != "report.html"]
        for name in names:
            local = folder / name[len(root.rstrip("/")) + 1 :]
            local.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(name, str(local))
    except FileNotFoundError:
        names = []
    if not names:
        raise RunNotFound(f"there is no run at {url}; check the URL")
