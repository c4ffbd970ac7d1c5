"""Keep a model registry in step with a snapshot store: one version per snapshot, an alias for the
one that serves.

The store records what was registered, so an interrupted update continues at the next start. A
snapshot is looked up by its tag before a version is created for it.
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

    def find_version(self, snapshot: Snapshot) -> str | None:
        """The version of a snapshot, if it is registered."""

    def register(self, snapshot: Snapshot, folder: Path) -> str:
        """Create a version for a snapshot, with the files in the folder."""

    def serve(self, version: str) -> None:
        """Set the alias to a version."""


def open_registry(options: recipes.RegistryOptions) -> Registry:
    """Open the registry of a recipe."""
    from headway.publish.registry_mlflow import MlflowRegistry

    return MlflowRegistry(options)


def remembered_options(store: SnapshotStore) -> recipes.RegistryOptions | None:
    """Options of the registry used last for this store."""
    try:
        return recipes.RegistryOptions(**store.registry_state()["registry"])
    except (KeyError, TypeError):
        return None


def begin(store: SnapshotStore, options: recipes.RegistryOptions) -> None:
    """Register all snapshots created from now on, even if the registry is unavailable at first."""
    if store.registry_state().get("registry") == asdict(options):
        return
    with store.sweep_blocked(), wait_for_lease(store.place, REGISTRY_LEASE):
        if store.registry_state().get("registry") != asdict(options):
            store.save_registry_state(_new_state(options, store.newest() + 1))


def follow(
    store: SnapshotStore, options: recipes.RegistryOptions, registry: Registry
) -> str | None:
    """Register new snapshots and set the alias; returns the serving version if it changed."""
    if store.latest() is None:
        return None
    with store.sweep_blocked(), wait_for_lease(store.place, REGISTRY_LEASE):
        serving = store.snapshot()
        state = _read_state(store, options, serving)
        due = [
            snapshot
            for snapshot in store.snapshots()
            if snapshot.name not in state["versions"]
            and (snapshot.manifest.number >= state["since"] or snapshot == serving)
        ]
        for snapshot in due:
            try:
                state["versions"][snapshot.name] = _register(store, snapshot, registry)
            except SnapshotDamaged:
                if snapshot == serving:
                    raise
            else:
                store.save_registry_state(state)
        if state["serving"] == serving.name:
            return None
        version = str(state["versions"][serving.name])
        registry.serve(version)
        store.save_registry_state({**state, "serving": serving.name})
    return version


def _read_state(
    store: SnapshotStore, options: recipes.RegistryOptions, serving: Snapshot
) -> dict[str, Any]:
    """State of the registry; of snapshots older than it, only the serving one is registered."""
    new = _new_state(options, serving.manifest.number)
    state = store.registry_state()
    same = state.get("registry") == new["registry"] and state.keys() == new.keys()
    if not same or not isinstance(state["versions"], dict) or type(state["since"]) is not int:
        return new
    names = {snapshot.name for snapshot in store.snapshots()}
    versions = {name: version for name, version in state["versions"].items() if name in names}
    return {**state, "versions": versions}


def _new_state(options: recipes.RegistryOptions, since: int) -> dict[str, Any]:
    return {"registry": asdict(options), "since": since, "versions": {}, "serving": None}


def _register(store: SnapshotStore, snapshot: Snapshot, registry: Registry) -> str:
    version = registry.find_version(snapshot)
    if version is not None:
        return version
    with tempfile.TemporaryDirectory(prefix="headway-registry-") as folder:
        lay_out(store, snapshot, Path(folder))
        return registry.register(snapshot, Path(folder))


def lay_out(store: SnapshotStore, snapshot: Snapshot, folder: Path) -> None:
    """Put the verified files of a snapshot into an empty folder; local files as links."""
    for name, file in snapshot.manifest.files.items():
        path = store.fetch(file, name, folder)
        if path != folder / name:
            (folder / name).symlink_to(path)
    (folder / f"{snapshot.name}.json").write_bytes(encode(snapshot.manifest)[1])
