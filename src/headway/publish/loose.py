"""One snapshot by itself: its files under their own names, as a registry hands them out."""

from __future__ import annotations

import os
from pathlib import Path

from headway.checkpoint.store.place import Folder
from headway.publish.snapshot import NAME, File, Snapshot, from_bytes, named
from headway.publish.store import Store
from headway.publish.whole import brought


class Loose:
    """A folder with the files of a snapshot, and its manifest beside them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._place, self._name = Folder(str(folder)), name

    def snapshot(self, name: str) -> Snapshot:
        """The one that it is, whatever is asked for."""
        return from_bytes(self._name, self._place.read(f"{self._name}.json"))

    def checked(self, file: File, name: str, folder: Path) -> Path:
        """A file, every byte of it looked at."""
        return brought(self._place, name, file, name, folder)


def loose(folder: str | os.PathLike[str]) -> Loose | None:
    """What lies in a folder, if that is one snapshot by itself."""
    path = Path(folder)
    found = [one.stem for one in path.glob("*.json") if NAME.fullmatch(one.stem)]
    return Loose(path, found[0]) if len(found) == 1 else None


def lay_out(store: Store, one: Snapshot, folder: Path) -> None:
    """Put a snapshot into an empty folder, every byte of it looked at; on a disk by links."""
    for name, file in one.manifest.files.items():
        path = store.checked(file, name, folder)
        if path != folder / name:
            (folder / name).symlink_to(path)
    (folder / f"{one.name}.json").write_bytes(named(one.manifest)[1])
