"""Files and objects at a URL, through fsspec if that is installed."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from headway.errors import MissingExtra, UsageError

# Their URLs contain no user and password.
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss")
PASSWORD = re.compile(r"[^/?#@]*:[^@]*@")


def check_url(url: str) -> None:
    """UsageError if the URL cannot be valid; the file system itself is not imported."""
    _without_password(url)
    try:
        import fsspec
    except ImportError:
        return
    scheme = url.partition("://")[0].rpartition("::")[2]
    if scheme not in fsspec.available_protocols():
        raise UsageError(
            f"cannot use {url}: unknown protocol {scheme}", code="url-unusable", url=url
        )


def _without_password(url: str) -> None:
    scheme, _, rest = url.partition("://")
    if scheme in BUCKETS and PASSWORD.match(rest):
        raise UsageError(
            f"{url} contains a password, which {scheme} does not use; set the variables of its "
            f"client, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            code="url-unusable",
            url=url,
        )


@contextlib.contextmanager
def _usable_url(url: str) -> Iterator[None]:
    """UsageError if the file system of a URL cannot be used."""
    _without_password(url)
    try:
        import fsspec  # noqa: F401
    except ImportError:
        raise MissingExtra(f"a URL such as {url} needs fsspec", extra="fsspec") from None
    try:
        yield
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot use {url}: {error}", code="url-unusable", url=url) from None


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path on it."""
    with _usable_url(url):
        import fsspec

        result: tuple[Any, str] = fsspec.core.url_to_fs(url)
    return result


def check_installed(url: str) -> None:
    """UsageError also if a package is missing; nothing is requested from the URL."""
    with _usable_url(url):
        from fsspec.registry import get_filesystem_class

        get_filesystem_class(url.partition("://")[0].partition("::")[0])


def modified_at(info: dict[str, Any]) -> float:
    """The modification time, for which file systems have different keys; now if there is none."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
    return time.time()


class RemoteObjects:
    """Objects below a URL, by relative names with slashes; each is written by a single put."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = filesystem(url)
        self._root = root.rstrip("/")
        self._folders: set[str] = set()  # known to exist; a check costs a request

    def put(self, name: str, content: bytes) -> None:
        """Create or replace an object."""
        path = f"{self._root}/{name}"
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            self._fs.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        self._fs.pipe_file(path, content)

    def get(self, name: str, limit: int | None = None) -> bytes:
        """The content of an object, or its first `limit` bytes; FileNotFoundError if missing."""
        options = {} if limit is None else {"start": 0, "end": limit}
        content: bytes = self._fs.cat_file(f"{self._root}/{name}", **options)
        return content

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def list_objects(self, below: str) -> Iterator[tuple[str, int, float]]:
        """Name, size and modification time of each object below a name."""
        self._fs.invalidate_cache()
        try:
            files = self._fs.find(f"{self._root}/{below}", detail=True)
        except FileNotFoundError:
            return
        for path, info in files.items():
            relative = path[path.index(self._root) + len(self._root) :].lstrip("/")
            yield relative, int(info.get("size") or 0), modified_at(info)
