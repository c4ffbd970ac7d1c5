"""The loading side: a snapshot as something to call, every byte of it checked first."""

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
from headway.publish import tensors
from headway.publish.loose import open_snapshot_folder
from headway.publish.store import LATEST, SnapshotStore
from headway.publish.targets import CONFIG, WEIGHTS, SnapshotContent
from headway.publish.targets import load_target as known


def load(
    store: str | os.PathLike[str],
    snapshot: str = LATEST,
    *,
    target: str | None = None,
    factory: Callable[..., Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """What serves: the first target of the recipe, or the one that is named.

    Nothing in a store is unpickled, and no name in it is imported: weights alone need the
    `factory` of the model. Compiled code is run as it is: load it from stores that you trust.
    """
    shelf = open_snapshot_folder(store) or SnapshotStore(store)
    one = shelf.snapshot(snapshot)
    made = one.manifest.targets
    name = next(iter(made)) if target is None else target
    if name not in made:
        raise UsageError(
            f"the snapshot {one.name} has no {name}; it has {', '.join(made)}",
            code="target-not-in-snapshot",
        )
    folder = Path(tempfile.mkdtemp(prefix="headway-snapshot-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wanted = made[name].files
    for needed in (CONFIG, WEIGHTS):
        if needed not in wanted:
            raise SnapshotDamaged(f"the snapshot {one.name} has no {needed}", code="file-missing")
    files = {file: shelf.checked(one.manifest.files[file], file, folder) for file in wanted}
    opened = SnapshotContent(files, _config(files), tensors.read(files[WEIGHTS]), factory)
    return known(name, options or {}).open(opened)


def _config(files: Mapping[str, Path]) -> dict[str, Any]:
    try:
        found = json.loads(files[CONFIG].read_bytes())
        fine = all(isinstance(found[name], dict) for name in ("arguments", "tables"))
    except (ValueError, KeyError, TypeError, RecursionError):
        fine = False
    if not fine:
        raise SnapshotDamaged(f"{CONFIG} makes no sense", code="snapshot-config-invalid")
    return dict(found)
