"""One snapshot by itself: its files under their own names, as a registry hands them out."""

from __future__ import annotations

import os
from pathlib import Path

from headway.checkpoint.store.place import LocalPlace
from headway.publish.snapshot import SNAPSHOT_NAME, Snapshot, SnapshotFile, decode, encode
from headway.publish.store import SnapshotStore
from headway.publish.whole import fetch_verified


class SnapshotFolder:
    """A folder with the files of a snapshot, and its manifest beside them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._place, self._name = LocalPlace(str(folder)), name

    def snapshot(self, name: str) -> Snapshot:
        """The one that it is, whatever is asked for."""
        return decode(self._name, self._place.read(f"{self._name}.json"))

    def checked(self, file: SnapshotFile, name: str, folder: Path) -> Path:
        """A file, every byte of it looked at."""
        return fetch_verified(self._place, name, file, name, folder)


def open_snapshot_folder(folder: str | os.PathLike[str]) -> SnapshotFolder | None:
    """What lies in a folder, if that is one snapshot by itself."""
    path = Path(folder)
    found = [one.stem for one in path.glob("*.json") if SNAPSHOT_NAME.fullmatch(one.stem)]
    return SnapshotFolder(path, found[0]) if len(found) == 1 else None


def lay_out(store: SnapshotStore, one: Snapshot, folder: Path) -> None:
    """Put a snapshot into an empty folder, every byte of it looked at; on a disk by links."""
    for name, file in one.manifest.files.items():
        path = store.checked(file, name, folder)
        if path != folder / name:
            (folder / name).symlink_to(path)
    (folder / f"{one.name}.json").write_bytes(encode(one.manifest)[1])
