"""Snapshots in one place: a snapshot is there whole, or it is not there.

    STORE/latest                    which snapshot serves, and the newest number there was
    STORE/snapshots/NUMBER-SUM.json the manifest of a snapshot, named by its own checksum
    STORE/files/SHA256.SUFFIX       files, named by their content; snapshots share them
    STORE/packages/SIGNATURE.json   the compiled code that fits a graph
    STORE/anchors/KEY.json          what became of an anchor under a recipe
    STORE/leases/KEY                who publishes an anchor now
    STORE/.work-TOKEN               a publish on its way

Files are written first, then the manifest, then `latest`: each is safe on disk before the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.checkpoint.store import disk, names
from headway.checkpoint.store.place import Folder, Place, failing, place
from headway.errors import SaveFailed, SnapshotDamaged, UsageError
from headway.publish.snapshot import NAME, File, Manifest, Snapshot, from_bytes, named

LATEST = "latest"
WORK = ".work-"  # the folder of one publish
BUSY = ".busy"  # held by all who publish, so that nobody takes their files for left over
OLD_S = 86400.0  # where there are no locks, what is left over goes after this time

Pieces = Callable[[], Iterable[bytes | memoryview]]


class Store:
    """Snapshots in one place."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.place: Place = place(url)

    # Reading

    def snapshots(self) -> list[Snapshot]:
        """All of them, the newest last; what cannot be read is left out."""
        found = []
        for listed in sorted(self.place.names("snapshots")):
            name, suffix = os.path.splitext(listed)
            if suffix == ".json" and NAME.fullmatch(name):
                with contextlib.suppress(FileNotFoundError, SnapshotDamaged):
                    found.append(self._read(name))
        return found

    def _read(self, name: str) -> Snapshot:
        return from_bytes(name, self.place.read(f"snapshots/{name}.json"))

    def snapshot(self, name: str = LATEST) -> Snapshot:
        """One by its name, by its number, or that which serves."""
        if name == LATEST:
            found = self.latest()
            if found is None:
                raise UsageError(f"no snapshot serves from {self.place.url} yet")
            return found
        listed = [os.path.splitext(one)[0] for one in self.place.names("snapshots")]
        wanted = name.zfill(8) if name.isdecimal() else name
        matching = [one for one in listed if NAME.fullmatch(one) and one.startswith(wanted)]
        if len(matching) != 1:
            what = "no snapshot" if not matching else f"{len(matching)} snapshots"
            raise UsageError(f"there is {what} {name} in {self.place.url}; --list shows them")
        return self._read(matching[0])

    def latest(self) -> Snapshot | None:
        """The snapshot that serves; None where nothing was published yet."""
        name, _ = self._pointer()
        if name is None:
            return None
        try:
            return self._read(name)
        except FileNotFoundError:
            raise SnapshotDamaged(f"the snapshot {name} is gone from {self.place.url}") from None

    def _pointer(self) -> tuple[str | None, int]:
        """The name that `latest` holds, and the newest number that was committed."""
        try:
            told = json.loads(self.place.read(LATEST))
            return str(told["snapshot"]), int(told["newest"])
        except FileNotFoundError:
            return None, 0
        except (ValueError, KeyError, TypeError):
            raise SnapshotDamaged(f"{self.place.path(LATEST)} was changed") from None

    def checked(self, file: File, name: str, folder: Path) -> Path:
        """A file on this machine, every byte of it looked at; behind a URL it is fetched."""
        digest = hashlib.sha256()
        local = isinstance(self.place, Folder)
        path = Path(self.place.path(file.stored)) if local else folder / name
        try:
            with contextlib.ExitStack() as stack:
                out = None if local else stack.enter_context(path.open("wb"))
                for piece in self.place.pieces(file.stored):
                    digest.update(piece)
                    if out is not None:
                        out.write(piece)
        except FileNotFoundError:
            raise SnapshotDamaged(f"{name} is missing in {self.place.url}") from None
        if digest.hexdigest() != file.sha256:
            raise SnapshotDamaged(f"{name} was changed in {self.place.url}: {file.stored}")
        return path

    # Writing

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Files that are added meanwhile are not swept."""
        with failing(f"nothing can be published to {self.place.url}"):
            for folder in ("files", "snapshots", "packages", "anchors", "leases"):
                self.place.make(folder)
            held = self._busy(shared=True)
        try:
            yield
        finally:
            if held is not None:
                disk.close(held)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for as long as this takes; if we are killed, the next sweep takes it away."""
        root = self.place.root if isinstance(self.place, Folder) else None
        with tempfile.TemporaryDirectory(prefix=WORK, dir=root) as name:
            yield Path(name)

    def _busy(self, *, shared: bool, wait: bool = True) -> int | None:
        """The lock of those who publish; None where there are no locks."""
        if not isinstance(self.place, Folder):
            return None
        try:
            return disk.lock(self.place.path(BUSY), shared=shared, wait=wait)
        except disk.NoLocks:
            return None

    def add(self, pieces: Pieces, suffix: str) -> File:
        """Put a file there, unless one of the same content is; `pieces` is asked twice."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(piece)
            size += len(piece)
        file = File(digest.hexdigest(), size, suffix)
        with failing(f"a file of {size} bytes cannot be written to {self.place.url}"):
            if not self._whole(file):
                self._write(file, pieces)
        return file

    def _whole(self, file: File) -> bool:
        """Whether it is there, and as it should be: what was damaged is written anew."""
        if not self._has(file):
            return False
        digest = hashlib.sha256()
        for piece in self.place.pieces(file.stored):
            digest.update(piece)
        return digest.hexdigest() == file.sha256

    def _has(self, file: File) -> bool:
        try:
            return self.place.size(file.stored) == file.size
        except FileNotFoundError:
            return False

    def _write(self, file: File, pieces: Pieces) -> None:
        renames = isinstance(self.place, Folder)
        aside = f"files/.new-{os.getpid()}-{file.sha256}" if renames else file.stored
        out = self.place.open(aside)
        try:
            for piece in pieces():
                out.write(piece)
            out.finish(sync=True)
        except BaseException as error:
            out.drop()
            if isinstance(error, Exception):
                self.place.delete(aside)
            raise
        if isinstance(self.place, Folder):
            self.place.rename(aside, file.stored)
            self.place.sync("files")

    def commit(self, manifest: Manifest, key: str, keep: int, *, orderly: bool = False) -> Snapshot:
        """Make it a snapshot and let it serve; it is there once this returns.

        `orderly`: it does not serve if what serves is of a later anchor of the same store.
        """
        with failing(f"the snapshot cannot be committed to {self.place.url}"), self.place.locked():
            self._roll_forward()
            for name, file in manifest.files.items():
                if not self._has(file):
                    raise SaveFailed(f"{name} went away from {self.place.url} meanwhile")
            _, newest = self._pointer()
            current = not orderly or self._follows(manifest)
            one = replace(manifest, number=newest + 1, current=current)
            name, content = named(one)
            self.place.write(f"snapshots/{name}.json", content)
            made = Snapshot(name, one)
            self._point(made)
            self.note(key, {"snapshot": name})
            self._retain(keep)
        return made

    def _follows(self, manifest: Manifest) -> bool:
        """Whether its anchor is not before that of what serves, as far as they can be compared."""
        serving = self._pointer()[0]
        for one in self.snapshots():
            if one.name == serving:
                (where, at), (mine, here) = one.manifest.anchor["order"], manifest.anchor["order"]
                return bool(where != mine or here >= at)
        return True

    def _point(self, one: Snapshot) -> None:
        serving = one.name if one.manifest.current else self._pointer()[0] or one.name
        told = {"snapshot": serving, "newest": one.manifest.number}
        self.place.write(LATEST, json.dumps(told).encode())

    def _roll_forward(self) -> None:
        """A commit that was cut short after its manifest is brought to its end."""
        _, newest = self._pointer()
        for one in self.snapshots():
            if one.manifest.number > newest:
                self._point(one)
                self.note(str(one.manifest.anchor["key"]), {"snapshot": one.name})

    def _retain(self, keep: int) -> None:
        serving, _ = self._pointer()
        for one in self.snapshots()[:-keep]:
            if one.name != serving:
                self.place.delete(f"snapshots/{one.name}.json")

    def rollback(self, to: str | None = None) -> Snapshot:
        """Let an earlier snapshot serve: the one before that which does, or the one named."""
        with failing(f"{self.place.url} cannot be rolled back"), self.place.locked():
            self._roll_forward()
            serving, newest = self._pointer()
            if serving is None:
                raise UsageError(f"no snapshot serves from {self.place.url} yet")
            if to is not None:
                one = self.snapshot(to)
            else:
                before = [one for one in self.snapshots() if one.name < serving]
                if not before:
                    raise UsageError(f"there is no snapshot before {serving}")
                one = before[-1]
            told = {"snapshot": one.name, "newest": newest}
            self.place.write(LATEST, json.dumps(told).encode())
        return one

    # What is known of anchors and of compiled code

    def noted(self, key: str) -> dict[str, Any]:
        """What became of an anchor: its `snapshot`, or why it was `rejected`; nothing if neither.

        A commit that was cut short counts from its manifest on.
        """
        for one in self.snapshots():
            if one.manifest.anchor.get("key") == key:
                return {"snapshot": one.name}
        return self._small(f"anchors/{key}.json")

    def note(self, key: str, told: dict[str, Any]) -> None:
        """Remember what became of an anchor."""
        self.place.write(f"anchors/{key}.json", json.dumps(told).encode())

    def package(self, signature: str) -> File | None:
        """The code that was compiled for a graph, if it is still there."""
        told = self._small(f"packages/{signature}.json")
        try:
            file = File(**told)
        except TypeError:
            return None
        return file if self._has(file) else None

    def keep_package(self, signature: str, file: File) -> None:
        """Remember which code fits a graph."""
        self.place.write(f"packages/{signature}.json", json.dumps(vars(file)).encode())

    def _small(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self.place.read(name))
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    # Clearing up

    def sweep(self, now: float | None = None) -> list[str]:
        """Finish what was cut short, and take away what no snapshot needs; the names of it.

        While somebody publishes nothing is taken: nobody can tell their files from left-over ones.
        """
        if not self.place.names():
            return []
        with failing(f"{self.place.url} cannot be swept"):
            try:
                held = self._busy(shared=False, wait=False)
            except disk.Busy:
                return []
            try:
                with self.place.locked():
                    self._roll_forward()
                    at = time.time() if now is None else now
                    return self._sweep(None if held is not None else at - OLD_S)
            finally:
                if held is not None:
                    disk.close(held)

    def _sweep(self, before: float | None) -> list[str]:
        needed = {f.stored for one in self.snapshots() for f in one.manifest.files.values()}
        doomed = []
        for folder in ("", "files", "snapshots", "packages", "anchors"):
            for name in self.place.names(folder):
                path = f"{folder}/{name}" if folder else name
                left = names.NEW.fullmatch(name) is not None or name.startswith(WORK)
                left |= folder == "files" and path not in needed
                if left and (before is None or self.place.changed(path) < before):
                    doomed.append(path)
        if before is None:  # nobody publishes, so nobody has a lease
            doomed += [f"leases/{name}" for name in self.place.names("leases")]
        for path in doomed:
            remove = self.place.delete_folder if path.startswith(WORK) else self.place.delete
            remove(path)
        for name in self.place.names("packages"):
            if self.package(os.path.splitext(name)[0]) is None:
                self.place.delete(f"packages/{name}")
        return doomed
