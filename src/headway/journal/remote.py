"""What lies behind a URL, through fsspec where it is installed: run folders, and objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
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


class Objects:
    """Below one URL, by relative names with slashes; object stores make one by a single put."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = filesystem(url)
        self._root = root.rstrip("/")
        self._folders: set[str] = set()  # that are there: asking again costs a request

    def put(self, name: str, content: bytes) -> None:
        """Make an object, or replace it."""
        path = f"{self._root}/{name}"
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._fs.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        self._fs.pipe_file(path, content)

    def get(self, name: str, most: int | None = None) -> bytes:
        """The content of an object, or its first bytes; FileNotFoundError if there is none."""
        first = {} if most is None else {"start": 0, "end": most}
        content: bytes = self._fs.cat_file(f"{self._root}/{name}", **first)
        return content

    def delete(self, name: str) -> None:
        """Take it away; nothing happens if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def listed(self, below: str) -> Iterator[tuple[str, int, float]]:
        """Name, size and time of change of each object below a name."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(f"{self._root}/{below}", detail=True)
        except FileNotFoundError:
            return
        for path, info in found.items():
            relative = path[path.index(self._root) + len(self._root) :].lstrip("/")
            yield relative, int(info.get("size") or 0), changed(info)


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
