"""Which variables of the environment are read while modules are imported."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

# They go through all of it for names with a prefix of their own (kit.EARLY), and keep no other.
PREFIX_READERS = {"tqdm", "networkx", "fsspec"}
ENVIRONMENT_MODULES = (
    "os",
    "_collections_abc",
    "collections.abc",
    "posixpath",
    "shutil",
    "tempfile",
)


class EnvironmentReads:
    """Patches the class of `os.environ`, as long as it lasts."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.all_by: set[str] = set()  # packages that went through the whole environment
        self._to_come: deque[str] = deque()  # what is read next when somebody goes through it

    def __enter__(self) -> EnvironmentReads:
        kind: Any = type(os.environ)
        self._originals = getitem, iterate = kind.__getitem__, kind.__iter__
        reads = self

        def __getitem__(environ: Any, key: Any) -> Any:
            reads._noted(key)
            return getitem(environ, key)

        def __iter__(environ: Any) -> Iterator[Any]:
            keys = list(iterate(environ))
            if (package := _reading_package()) != "headway":
                reads.all_by.add(package)
            reads._to_come = deque(keys)
            return iter(keys)

        kind.__getitem__, kind.__iter__ = __getitem__, __iter__
        return self

    def __exit__(self, *_: object) -> None:
        kind: Any = type(os.environ)
        kind.__getitem__, kind.__iter__ = self._originals

    def _noted(self, key: Any) -> None:
        if self._to_come and self._to_come[0] == key:
            self._to_come.popleft()
            return
        self._to_come.clear()
        if isinstance(key, str) and _reading_package() != "headway":
            self.names.add(key)


def _reading_package() -> str:
    """Whose code reads: the innermost frame that is not one of the ways to the environment."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in ENVIRONMENT_MODULES and name != __name__:
            return name.partition(".")[0]
        frame = frame.f_back
    return ""
