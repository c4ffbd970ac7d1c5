"""Keep a model registry in step with a snapshot store: one version per snapshot, an alias for the
one that serves.

The store records what was registered, so an interrupted update continues at the next start. The
registry looks a snapshot up by its tag before it makes a version of it.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from headway.errors import SnapshotDamaged
from headway.publish import recipe as recipes
from headway.publish.snapshot import Snapshot, encode
from headway.publish.store import SnapshotStore
from headway.storage.lease import wait_for_lease

REGISTRY_LEASE = "registry"


class Registry(Protocol):
    """Versions of one model."""

    def version(self, one: Snapshot) -> str | None:
        """That of a snapshot, if it is registered."""

    def register(self, one: Snapshot, folder: Path) -> str:
        """Make a version of it; its files lie in the folder."""

    def serve(self, version: str) -> None:
        """The alias names it from now on."""


def open_registry(told: recipes.RegistryOptions) -> Registry:
    """The registry that a recipe names."""
    from headway.publish.registry_mlflow import MlflowRegistry

    return MlflowRegistry(told)


def remembered_options(store: SnapshotStore) -> recipes.RegistryOptions | None:
    """The registry that snapshots of this store were last registered in."""
    try:
        return recipes.RegistryOptions(**store.registered()["registry"])
    except (KeyError, TypeError):
        return None


def begin(store: SnapshotStore, told: recipes.RegistryOptions) -> None:
    """Snapshots that are made from now on are registered there, however long that takes."""
    if store.registered().get("registry") == asdict(told):
        return
    with store.publishing(), wait_for_lease(store.place, REGISTRY_LEASE):
        if store.registered().get("registry") != asdict(told):
            store.keep_registered(_new_state(told, store.newest() + 1))


def follow(store: SnapshotStore, told: recipes.RegistryOptions, registry: Registry) -> str | None:
    """Register what is new, and let the alias name what serves; its version, if that is another."""
    if store.latest() is None:
        return None
    with store.publishing(), wait_for_lease(store.place, REGISTRY_LEASE):
        serving = store.snapshot()
        known = _read_state(store, told, serving)
        due = [
            one
            for one in store.snapshots()
            if one.name not in known["versions"]
            and (one.manifest.number >= known["since"] or one == serving)
        ]
        for one in due:
            try:
                known["versions"][one.name] = _register(store, one, registry)
            except SnapshotDamaged:
                if one == serving:
                    raise
            else:
                store.keep_registered(known)
        if known["serving"] == serving.name:
            return None
        version = str(known["versions"][serving.name])
        registry.serve(version)
        store.keep_registered({**known, "serving": serving.name})
    return version


def _read_state(
    store: SnapshotStore, told: recipes.RegistryOptions, serving: Snapshot
) -> dict[str, Any]:
    """What was registered there; of snapshots from before it began, only what serves is."""
    fresh = _new_state(told, serving.manifest.number)
    known = store.registered()
    same = known.get("registry") == fresh["registry"] and known.keys() == fresh.keys()
    if not same or not isinstance(known["versions"], dict) or type(known["since"]) is not int:
        return fresh
    here = {one.name for one in store.snapshots()}
    kept = {name: version for name, version in known["versions"].items() if name in here}
    return {**known, "versions": kept}


def _new_state(told: recipes.RegistryOptions, since: int) -> dict[str, Any]:
    return {"registry": asdict(told), "since": since, "versions": {}, "serving": None}


def _register(store: SnapshotStore, one: Snapshot, registry: Registry) -> str:
    found = registry.version(one)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="headway-registry-") as folder:
        lay_out(store, one, Path(folder))
        return registry.register(one, Path(folder))


def lay_out(store: SnapshotStore, one: Snapshot, folder: Path) -> None:
    """Put a snapshot into an empty folder, every byte of it looked at; on a disk by links."""
    for name, file in one.manifest.files.items():
        path = store.checked(file, name, folder)
        if path != folder / name:
            (folder / name).symlink_to(path)
    (folder / f"{one.name}.json").write_bytes(encode(one.manifest)[1])
