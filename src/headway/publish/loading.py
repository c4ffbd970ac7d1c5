"""Load a snapshot for serving; every byte of its files is verified first."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.errors import SnapshotDamaged, UsageError
from headway.publish import safetensors_io
from headway.publish.snapshot import SNAPSHOT_NAME, Snapshot, SnapshotFile, decode, fetch_verified
from headway.publish.store import LATEST, SnapshotStore
from headway.publish.targets.base import CONFIG, WEIGHTS, SnapshotContent, load_target
from headway.storage.place import LocalPlace


class SnapshotFolder:
    """A folder with the files of a snapshot and its manifest."""

    def __init__(self, folder: Path, name: str) -> None:
        self._place, self._name = LocalPlace(str(folder)), name

    def snapshot(self, name: str) -> Snapshot:
        """The snapshot of the folder, independent of the name."""
        return decode(self._name, self._place.read(f"{self._name}.json"))

    def fetch(self, file: SnapshotFile, name: str, folder: Path) -> Path:
        """Path of a verified file."""
        return fetch_verified(self._place, name, file, name, folder)


def open_snapshot_folder(folder: str | os.PathLike[str]) -> SnapshotFolder | None:
    """The snapshot in a folder, if the folder contains exactly one."""
    path = Path(folder)
    names = [file.stem for file in path.glob("*.json") if SNAPSHOT_NAME.fullmatch(file.stem)]
    return SnapshotFolder(path, names[0]) if len(names) == 1 else None


def load(
    store: str | os.PathLike[str],
    snapshot: str = LATEST,
    *,
    target: str | None = None,
    factory: Callable[..., Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Load a target of a snapshot for serving; by default the first target of the recipe.

    Nothing in a store is unpickled or imported, so the `safetensors` target needs the `factory`
    of the model. Compiled code is run: load it only from stores that you trust.
    """
    source = open_snapshot_folder(store) or SnapshotStore(store)
    chosen = source.snapshot(snapshot)
    targets = chosen.manifest.targets
    name = next(iter(targets)) if target is None else target
    if name not in targets:
        raise UsageError(
            f"the snapshot {chosen.name} has no {name}; it has {', '.join(targets)}",
            code="target-not-in-snapshot",
        )
    folder = Path(tempfile.mkdtemp(prefix="headway-snapshot-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    names = targets[name].files
    for needed in (CONFIG, WEIGHTS):
        if needed not in names:
            raise SnapshotDamaged(
                f"the snapshot {chosen.name} has no {needed}", code="file-missing"
            )
    files = {file: source.fetch(chosen.manifest.files[file], file, folder) for file in names}
    opened = SnapshotContent(files, _config(files), safetensors_io.read(files[WEIGHTS]), factory)
    return load_target(name, options or {}).open(opened)


def _config(files: Mapping[str, Path]) -> dict[str, Any]:
    try:
        config = json.loads(files[CONFIG].read_bytes())
        valid = all(isinstance(config[name], dict) for name in ("arguments", "tables"))
    except (ValueError, KeyError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise SnapshotDamaged(f"{CONFIG} is invalid", code="snapshot-config-invalid")
    return dict(config)
