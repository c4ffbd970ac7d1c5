"""Snapshots in one place: a snapshot is there whole, or it is not there.

    STORE/latest                    which snapshot serves, and the newest number there was
    STORE/snapshots/NUMBER-SUM.json the manifest of a snapshot, named by its own checksum
    STORE/files/SHA256.SUFFIX       files, named by their content; snapshots share them
    STORE/packages/SIGNATURE.json   the compiled code that fits a graph
    STORE/anchors/KEY.json          what became of an anchor under a recipe
    STORE/leases/KEY                who publishes an anchor now; without locks `changes`, too
    STORE/registry.json             what a model registry knows of them
    STORE/.work-TOKEN               a publish on its way

Files are written first, then the manifest, then `latest`: each is safe on disk before the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.checkpoint.store import layout
from headway.errors import Reason, SaveFailed, SnapshotDamaged, UsageError, with_code
from headway.publish.snapshot import (
    SNAPSHOT_NAME,
    Manifest,
    Snapshot,
    SnapshotFile,
    damage_reason,
    decode,
    decode_file,
    encode,
    fetch_verified,
    is_present,
    verified,
)
from headway.storage import disk
from headway.storage.lease import exclusive_change
from headway.storage.place import LocalPlace, Place, open_place, os_errors_as_save_failed

LATEST = "latest"
REGISTRY_FILE = "registry.json"
WORK_PREFIX = ".work-"  # the folder of one publish
BUSY_LOCK = ".busy"  # held by all who publish, so that nobody takes their files for left over
LEFTOVER_AGE_S = 86400.0  # where there are no locks, what is left over goes after this time

Pieces = Callable[[], Iterable[bytes | memoryview]]
Say = Callable[[str], None]


class SnapshotStore:
    """Snapshots in one place."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.place: Place = open_place(url)

    # Reading

    def snapshots(self) -> list[Snapshot]:
        """All of them, the newest last; what cannot be read is left out."""
        return self._scan()[0]

    def unreadable(self) -> dict[str, str]:
        """The names of the others, and why each cannot be read."""
        return self._scan()[1]

    def _scan(self) -> tuple[list[Snapshot], dict[str, str]]:
        readable, unreadable = [], {}
        for name in self._names():
            try:
                readable.append(self._read(name))
            except SnapshotDamaged as error:
                unreadable[name] = str(error)
            except FileNotFoundError:  # deleted meanwhile
                pass
        return readable, unreadable

    def _names(self) -> list[str]:
        split = (os.path.splitext(listed) for listed in self.place.list_names("snapshots"))
        return sorted(
            name for name, suffix in split if suffix == ".json" and SNAPSHOT_NAME.fullmatch(name)
        )

    def newest(self) -> int:
        """The highest number of a snapshot that is there."""
        return int(max(self._names(), default="0").partition("-")[0])

    def _read(self, name: str) -> Snapshot:
        return decode(name, self.place.read(f"snapshots/{name}.json"))

    def snapshot(self, name: str = LATEST) -> Snapshot:
        """One by its name, by its number, or that which serves."""
        if name == LATEST:
            snapshot = self.latest()
            if snapshot is None:
                raise self._nothing_serves()
            return snapshot
        prefix = name.zfill(8) if name.isdecimal() else name
        matching = [listed for listed in self._names() if listed.startswith(prefix)]
        if len(matching) != 1:
            count = "no snapshot" if not matching else f"{len(matching)} snapshots"
            raise UsageError(
                f"there is {count} {name} in {self.place.url}; --list shows them",
                code="snapshot-not-found",
            )
        return self._read(matching[0])

    def latest(self) -> Snapshot | None:
        """The snapshot that serves; None where nothing was published yet."""
        name, _ = self._pointer()
        if name is None:
            return None
        try:
            return self._read(name)
        except FileNotFoundError:
            reason = f"the snapshot {name} is gone from {self.place.url}"
            raise self._pointer_error(reason, code="snapshot-gone") from None
        except SnapshotDamaged as error:
            raise self._pointer_error(str(error), code=error.code) from None

    def _pointer(self) -> tuple[str | None, int]:
        """The name that `latest` holds, and the newest number that was committed."""
        try:
            pointer = json.loads(self.place.read(LATEST))
            name, newest = pointer["snapshot"], pointer["newest"]
            if (name is None or SNAPSHOT_NAME.fullmatch(name)) and type(newest) is int:
                return name, newest
        except FileNotFoundError:
            if self._names():
                reason = f"{self.place.path(LATEST)} is missing"
                raise self._pointer_error(reason, code="latest-missing") from None
            return None, 0
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._pointer_error(f"{self.place.path(LATEST)} was changed", code="latest-changed")

    def _pointer_error(self, reason: str, *, code: str) -> SnapshotDamaged:
        hint = f"`headway publish --rollback --to {self.place.url}` lets a whole one serve"
        return SnapshotDamaged(f"{reason}; {hint}", code=code)

    def _nothing_serves(self) -> UsageError:
        return UsageError(
            f"no snapshot serves from {self.place.url}; --list shows what is there",
            code="no-snapshot-serves",
        )

    def damage(self, snapshot: Snapshot, *, every_byte: bool = True) -> Reason:
        """Why a snapshot cannot serve, as one clause; empty if it can."""
        return damage_reason(self.place, snapshot, every_byte=every_byte)

    def fetch(self, file: SnapshotFile, name: str, folder: Path) -> Path:
        """A file on this machine, every byte of it looked at; behind a URL it is fetched."""
        return fetch_verified(self.place, file.stored, file, name, folder)

    # Writing

    @contextlib.contextmanager
    def sweep_blocked(self) -> Iterator[None]:
        """Files that are added meanwhile are not swept."""
        with os_errors_as_save_failed(f"nothing can be published to {self.place.url}"):
            for folder in ("files", "snapshots", "packages", "anchors", "leases"):
                self.place.make_folder(folder)
            lock = self._busy(shared=True)
        try:
            yield
        finally:
            if lock is not None:
                disk.close(lock)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for as long as this takes; if we are killed, the next sweep takes it away."""
        root = self.place.root if isinstance(self.place, LocalPlace) else None
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=root) as name:
            yield Path(name)

    def _busy(self, *, shared: bool, wait: bool = True) -> int | None:
        """The lock of those who publish; None where there are no locks."""
        if not isinstance(self.place, LocalPlace):
            return None
        try:
            return disk.lock(self.place.path(BUSY_LOCK), shared=shared, wait=wait)
        except disk.NoLocks:
            return None

    def add(self, pieces: Pieces, suffix: str) -> SnapshotFile:
        """Put a file there, unless one of the same content is; `pieces` is asked twice."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(piece)
            size += len(piece)
        file = SnapshotFile(digest.hexdigest(), size, suffix)
        with os_errors_as_save_failed(
            f"a file of {size} bytes cannot be written to {self.place.url}"
        ):
            if not verified(self.place, file):  # what was damaged is written anew
                self._write(file, pieces)
        return file

    def _write(self, file: SnapshotFile, pieces: Pieces) -> None:
        renames = isinstance(self.place, LocalPlace)
        aside = f"files/.new-{os.getpid()}-{file.sha256}" if renames else file.stored
        out = self.place.create(aside)
        try:
            for piece in pieces():
                out.write(piece)
            out.commit(sync=True)
        except BaseException as error:
            out.discard()
            if isinstance(error, Exception):
                self.place.delete(aside)
            raise
        if isinstance(self.place, LocalPlace):
            self.place.rename(aside, file.stored)
            self.place.sync("files")

    def commit(self, manifest: Manifest, key: str, keep: int, *, orderly: bool = False) -> Snapshot:
        """Make it a snapshot and let it serve; it is there once this returns.

        `orderly`: it does not serve if what serves is of a later anchor of the same store.
        """
        with (
            os_errors_as_save_failed(f"the snapshot cannot be committed to {self.place.url}"),
            exclusive_change(self.place),
        ):
            self._roll_forward()
            for name, file in manifest.files.items():
                if not is_present(self.place, file):
                    raise SaveFailed(
                        f"{name} went away from {self.place.url} meanwhile", code="file-missing"
                    )
            _, newest = self._pointer()
            current = not orderly or self._is_in_order(manifest)
            numbered = replace(manifest, number=newest + 1, current=current)
            name, content = encode(numbered)
            self.place.write(f"snapshots/{name}.json", content)
            snapshot = Snapshot(name, numbered)
            self._update_pointer(snapshot)
            self.record_outcome(key, {"snapshot": name})
            self._retain(keep)
        return snapshot

    def _is_in_order(self, manifest: Manifest) -> bool:
        """Whether its anchor is not before that of what serves, as far as they can be compared."""
        serving = self._pointer()[0]
        for snapshot in self.snapshots():
            if snapshot.name == serving:
                serving_store, serving_order = snapshot.manifest.anchor.get("order") or ("", 0)
                own_store, own_order = manifest.anchor["order"]
                return bool(serving_store != own_store or own_order >= serving_order)
        return True

    def _update_pointer(self, snapshot: Snapshot) -> None:
        serving = (
            snapshot.name if snapshot.manifest.current else self._pointer()[0] or snapshot.name
        )
        self._serve(serving, snapshot.manifest.number)

    def _roll_forward(self) -> bool:
        """Bring a commit that was cut short to its end; whether `latest` had to be made anew."""
        try:
            _, newest = self._pointer()
        except SnapshotDamaged:
            return self._rebuild_pointer()
        for snapshot in self.snapshots():
            if snapshot.manifest.number > newest:
                self._update_pointer(snapshot)
                self._note_published(snapshot)
        return False

    def _rebuild_pointer(self) -> bool:
        """Without a pointer: the newest that is whole serves, or none."""
        snapshots = self.snapshots()
        for snapshot in snapshots:
            self._note_published(snapshot)
        best_first = sorted(
            snapshots, key=lambda snapshot: (snapshot.manifest.current, snapshot.name), reverse=True
        )
        serving = next(
            (snapshot.name for snapshot in best_first if not self.damage(snapshot)), None
        )
        self._serve(serving, self.newest())
        return True

    def _serve(self, name: str | None, newest: int) -> None:
        pointer = {"snapshot": name, "newest": newest}
        self.place.write(LATEST, json.dumps(pointer).encode())

    def _note_published(self, snapshot: Snapshot) -> None:
        self.record_outcome(str(snapshot.manifest.anchor["key"]), {"snapshot": snapshot.name})

    def _retain(self, keep: int) -> None:
        serving, _ = self._pointer()
        first = self.snapshots()[-keep:][0].name
        for name in self._names():
            if name < first and name != serving:
                self.place.delete(f"snapshots/{name}.json")

    def rollback(self, to: str | None = None, log: Say = lambda _: None) -> Snapshot:
        """Let an earlier snapshot serve: the one before that which does, or the one named.

        Where nobody can tell which one serves, it is the newest. One that is damaged never is.
        """
        with (
            os_errors_as_save_failed(f"{self.place.url} cannot be rolled back"),
            exclusive_change(self.place),
        ):
            rebuilt = self._roll_forward()
            serving, newest = self._pointer()
            if to is not None:
                snapshot = self.snapshot(to)
                if reason := self.damage(snapshot):
                    raise SnapshotDamaged(
                        f"the snapshot {snapshot.name} cannot serve: {reason}", code=reason.code
                    )
            elif serving is None:
                raise self._nothing_serves()
            else:
                snapshot = self.snapshot(serving) if rebuilt else self._previous(serving, log)
            self._serve(snapshot.name, newest)
        return snapshot

    def _previous(self, serving: str, log: Say) -> Snapshot:
        for snapshot in reversed(self.snapshots()):
            if snapshot.name < serving:
                reason = self.damage(snapshot)
                if not reason:
                    return snapshot
                log(with_code(f"{snapshot.name} is passed over: {reason}", code=reason.code))
        raise UsageError(
            f"there is no snapshot before {serving}; --list shows what can be named",
            code="no-earlier-snapshot",
        )

    # What is known of anchors and of compiled code

    def outcome_of(self, key: str) -> dict[str, Any]:
        """What became of an anchor: its `snapshot`, or why it was `rejected`; nothing if neither.

        One that was `deferred` is tried `again` from that time on. A commit that was cut short
        counts from its manifest on.
        """
        for snapshot in self.snapshots():
            if snapshot.manifest.anchor.get("key") == key:
                return {"snapshot": snapshot.name}
        return self._read_json(f"anchors/{key}.json")

    def is_settled(self, key: str) -> bool:
        """Whether nobody needs to try an anchor again."""
        return not {"snapshot", "rejected"}.isdisjoint(self.outcome_of(key))

    def record_outcome(self, key: str, outcome: dict[str, Any]) -> None:
        """Remember what became of an anchor."""
        with os_errors_as_save_failed(f"{self.place.url} cannot be written to"):
            self.place.write(f"anchors/{key}.json", json.dumps(outcome).encode())

    def find_package(self, signature: str) -> SnapshotFile | None:
        """The code that was compiled for a graph, if it is still there."""
        fields = self._read_json(f"packages/{signature}.json")
        try:
            file = decode_file(fields)
        except (TypeError, ValueError):
            return None
        return file if is_present(self.place, file) else None

    def record_package(self, signature: str, file: SnapshotFile) -> None:
        """Remember which code fits a graph."""
        self.place.write(f"packages/{signature}.json", json.dumps(vars(file)).encode())

    def registry_state(self) -> dict[str, Any]:
        """What a model registry knows of the snapshots, as it was kept."""
        return self._read_json(REGISTRY_FILE)

    def save_registry_state(self, state: dict[str, Any]) -> None:
        """Remember what a model registry knows by now."""
        with os_errors_as_save_failed(f"{self.place.url} cannot be written to"):
            self.place.write(REGISTRY_FILE, json.dumps(state, indent=1).encode())

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.place.read(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    # Clearing up

    def sweep(self, now: float | None = None) -> list[str]:
        """Finish what was cut short, and take away what no snapshot needs; the names of it.

        While somebody publishes nothing is taken: nobody can tell their files from left-over ones.
        """
        if not self.place.list_names():
            return []
        with os_errors_as_save_failed(f"{self.place.url} cannot be swept"):
            try:
                lock = self._busy(shared=False, wait=False)
            except disk.Busy:
                return []
            try:
                with exclusive_change(self.place):
                    self._roll_forward()
                    at = time.time() if now is None else now
                    return self._sweep(None if lock is not None else at - LEFTOVER_AGE_S)
            finally:
                if lock is not None:
                    disk.close(lock)

    def _sweep(self, before: float | None) -> list[str]:
        needed = {
            f.stored for snapshot in self.snapshots() for f in snapshot.manifest.files.values()
        }
        deletable = []
        for folder in ("", "files", "snapshots", "packages", "anchors"):
            for name in self.place.list_names(folder):
                path = f"{folder}/{name}" if folder else name
                leftover = layout.REPLACEMENT.fullmatch(name) is not None or name.startswith(
                    WORK_PREFIX
                )
                leftover |= folder == "files" and path not in needed
                if leftover and (before is None or self.place.modified_at(path) < before):
                    deletable.append(path)
        if before is None:  # nobody publishes, so nobody has a lease
            deletable += [f"leases/{name}" for name in self.place.list_names("leases")]
        for path in deletable:
            remove = self.place.delete_folder if path.startswith(WORK_PREFIX) else self.place.delete
            remove(path)
        for name in self.place.list_names("packages"):
            if self.find_package(os.path.splitext(name)[0]) is None:
                self.place.delete(f"packages/{name}")
        return deletable


class CompiledCodeCache:
    """What one publish takes from the store, and what it adds once that has proven itself."""

    def __init__(self, store: SnapshotStore, *, reuse: bool) -> None:
        self._store, self._reuse = store, reuse
        self._compiled: dict[str, Path] = {}
        self.reused = False

    def get(self, signature: str, path: Path) -> bool:
        """Put the code there, if it is known and as it was."""
        file = self._store.find_package(signature) if self._reuse else None
        if file is None:
            return False
        try:
            shutil.copyfile(self._store.fetch(file, path.name, path.parent), path)
        except SnapshotDamaged:
            return False
        self.reused = True
        return True

    def put(self, signature: str, path: Path) -> None:
        """It was compiled now."""
        self._compiled[signature] = path

    def record(self, files: dict[str, SnapshotFile]) -> None:
        """It works: the next publish of the graph need not compile it."""
        for signature, path in self._compiled.items():
            self._store.record_package(signature, files[path.name])
