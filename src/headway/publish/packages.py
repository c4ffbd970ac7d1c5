"""Compiled code that a store has, by the graph it was compiled from."""

from __future__ import annotations

import shutil
from pathlib import Path

from headway.errors import SnapshotDamaged
from headway.publish.snapshot import SnapshotFile
from headway.publish.store import SnapshotStore


class CompiledCodeCache:
    """What one publish takes from the store, and what it adds once that has proven itself."""

    def __init__(self, store: SnapshotStore, *, reuse: bool) -> None:
        self._store, self._reuse = store, reuse
        self._made: dict[str, Path] = {}
        self.reused = False

    def get(self, signature: str, path: Path) -> bool:
        """Put the code there, if it is known and as it was."""
        file = self._store.package(signature) if self._reuse else None
        if file is None:
            return False
        try:
            shutil.copyfile(self._store.checked(file, path.name, path.parent), path)
        except SnapshotDamaged:
            return False
        self.reused = True
        return True

    def put(self, signature: str, path: Path) -> None:
        """It was compiled now."""
        self._made[signature] = path

    def keep(self, files: dict[str, SnapshotFile]) -> None:
        """It works: the next publish of the graph need not compile it."""
        for signature, path in self._made.items():
            self._store.keep_package(signature, files[path.name])
