"""Snapshots of two small files, made without a model."""

from __future__ import annotations

import contextlib
from pathlib import Path

from headway.publish.snapshot import Manifest, Snapshot, TargetRecord
from headway.publish.store import SnapshotStore


def publish(
    store: SnapshotStore,
    anchor: str,
    *,
    keep: int = 3,
    shared: str = "code",
    order: int | None = None,
) -> Snapshot:
    """A snapshot of two files, one of which others have too."""
    with store.sweep_blocked():
        files = {
            name: store.add(lambda content=content: [content.encode()], f".{name}")  # type: ignore[misc]
            for name, content in (("weights", f"weights of {anchor}"), ("pt2", shared))
        }
        manifest = Manifest(
            number=0,
            made=0.0,
            current=True,
            anchor={"key": anchor, "path": anchor, "step": 1, "order": ["", order or 0]},
            recipe="",
            files=files,
            targets={"aoti": TargetRecord(("weights", "pt2"))},
        )
        return store.commit(manifest, anchor, keep, orderly=order is not None)


def content(store: SnapshotStore, snapshot: Snapshot, folder: Path) -> list[str]:
    checked = (store.fetch(file, name, folder) for name, file in snapshot.manifest.files.items())
    return [path.read_text() for path in checked]


def only_what_is_needed(store: SnapshotStore) -> None:
    needed = {
        file.stored for snapshot in store.snapshots() for file in snapshot.manifest.files.values()
    }
    assert {f"files/{name}" for name in store.place.list_names("files")} == needed
    for folder in ("", "snapshots", "packages", "anchors"):
        with contextlib.suppress(FileNotFoundError):
            assert not [name for name in store.place.list_names(folder) if name.startswith(".new-")]
