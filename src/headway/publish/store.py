"""Store of snapshots: a snapshot is complete, or it does not exist.

    STORE/latest                    the serving snapshot, and the highest number so far
    STORE/snapshots/NUMBER-SUM.json manifest of a snapshot, named by its own checksum
    STORE/files/SHA256.SUFFIX       files, named by their content and shared by snapshots
    STORE/packages/SIGNATURE.json   compiled code of a graph
    STORE/anchors/KEY.json          outcome of an anchor under a recipe
    STORE/leases/KEY                lease of a publish in progress; without locks also `changes`
    STORE/registry.json             state of the model registry
    STORE/.work-TOKEN               work folder of a publish in progress

Files are written first, then the manifest, then `latest`; each is durable before the next.
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
BUSY_LOCK = ".busy"  # held during a publish, so that a sweep does not delete its files
LEFTOVER_AGE_S = 86400.0  # without locks, leftover files are deleted after this time

Pieces = Callable[[], Iterable[bytes | memoryview]]
Log = Callable[[str], None]


class SnapshotStore:
    """Snapshots in one folder or below one URL."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.place: Place = open_place(url)

    # Reading

    def snapshots(self) -> list[Snapshot]:
        """All readable snapshots, the newest last."""
        return self._scan()[0]

    def unreadable(self) -> dict[str, str]:
        """Names of snapshots that cannot be read, with the reason."""
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
        """The highest number of a snapshot in the store."""
        return int(max(self._names(), default="0").partition("-")[0])

    def _read(self, name: str) -> Snapshot:
        return decode(name, self.place.read(f"snapshots/{name}.json"))

    def snapshot(self, name: str = LATEST) -> Snapshot:
        """A snapshot by name or number, or the serving one."""
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
        """The serving snapshot; None if nothing is published yet."""
        name, _ = self._pointer()
        if name is None:
            return None
        try:
            return self._read(name)
        except FileNotFoundError:
            reason = f"the snapshot {name} is missing in {self.place.url}"
            raise self._pointer_error(reason, code="snapshot-gone") from None
        except SnapshotDamaged as error:
            raise self._pointer_error(str(error), code=error.code) from None

    def _pointer(self) -> tuple[str | None, int]:
        """Name of the serving snapshot, and the highest committed number."""
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
        hint = f"`headway publish --rollback --to {self.place.url}` serves an intact one"
        return SnapshotDamaged(f"{reason}; {hint}", code=code)

    def _nothing_serves(self) -> UsageError:
        return UsageError(
            f"{self.place.url} has no serving snapshot; --list shows its snapshots",
            code="no-snapshot-serves",
        )

    def damage(self, snapshot: Snapshot, *, every_byte: bool = True) -> Reason:
        """Why a snapshot cannot be served, as one clause; empty if it can."""
        return damage_reason(self.place, snapshot, every_byte=every_byte)

    def fetch(self, file: SnapshotFile, name: str, folder: Path) -> Path:
        """Path of a verified file on this machine; files behind a URL are downloaded."""
        return fetch_verified(self.place, file.stored, file, name, folder)

    # Writing

    @contextlib.contextmanager
    def sweep_blocked(self) -> Iterator[None]:
        """Files added within this context are not swept."""
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
        """A temporary folder; after a kill, the next sweep deletes it."""
        root = self.place.root if isinstance(self.place, LocalPlace) else None
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=root) as name:
            yield Path(name)

    def _busy(self, *, shared: bool, wait: bool = True) -> int | None:
        """Lock held by publishes in progress; None without locks."""
        if not isinstance(self.place, LocalPlace):
            return None
        try:
            return disk.lock(self.place.path(BUSY_LOCK), shared=shared, wait=wait)
        except disk.NoLocks:
            return None

    def add(self, pieces: Pieces, suffix: str) -> SnapshotFile:
        """Add a file unless one with the same content exists; `pieces` is called twice."""
        digest, size = hashlib.sha256(), 0
        for piece in pieces():
            digest.update(piece)
            size += len(piece)
        file = SnapshotFile(digest.hexdigest(), size, suffix)
        with os_errors_as_save_failed(
            f"a file of {size} bytes cannot be written to {self.place.url}"
        ):
            if not verified(self.place, file):  # a damaged file is written again
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
        """Commit a snapshot and serve it; durable when this returns.

        `orderly`: do not serve it if the serving snapshot is of a later anchor of the same store.
        """
        with (
            os_errors_as_save_failed(f"the snapshot cannot be committed to {self.place.url}"),
            exclusive_change(self.place),
        ):
            self._roll_forward()
            for name, file in manifest.files.items():
                if not is_present(self.place, file):
                    raise SaveFailed(
                        f"{name} was deleted from {self.place.url} before the commit",
                        code="file-missing",
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
        """Whether its anchor is not older than that of the serving snapshot, if comparable."""
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
        """Complete an interrupted commit; return whether `latest` had to be rebuilt."""
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
        """Rebuild `latest`: the newest intact snapshot serves, or none."""
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

    def rollback(self, to: str | None = None, log: Log = lambda _: None) -> Snapshot:
        """Serve an earlier snapshot: the given one, or the one before the serving one.

        If the serving snapshot is unknown, serve the newest. Damaged snapshots are never served.
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
                        f"the snapshot {snapshot.name} cannot be served: {reason}", code=reason.code
                    )
            elif serving is None:
                raise self._nothing_serves()
            else:
                snapshot = self.snapshot(serving) if rebuilt else self._previous(serving, log)
            self._serve(snapshot.name, newest)
        return snapshot

    def _previous(self, serving: str, log: Log) -> Snapshot:
        for snapshot in reversed(self.snapshots()):
            if snapshot.name < serving:
                reason = self.damage(snapshot)
                if not reason:
                    return snapshot
                log(with_code(f"{snapshot.name} is skipped: {reason}", code=reason.code))
        raise UsageError(
            f"there is no snapshot before {serving}; --list shows all snapshots",
            code="no-earlier-snapshot",
        )

    # Outcomes of anchors, and compiled code

    def outcome_of(self, key: str) -> dict[str, Any]:
        """Outcome of an anchor: its `snapshot`, or why it was `rejected`; empty if unknown.

        A `deferred` anchor is tried again from the time `again`. An interrupted commit counts
        once its manifest exists.
        """
        for snapshot in self.snapshots():
            if snapshot.manifest.anchor.get("key") == key:
                return {"snapshot": snapshot.name}
        return self._read_json(f"anchors/{key}.json")

    def is_settled(self, key: str) -> bool:
        """Whether an anchor is published or rejected, so that no one needs to try again."""
        return not {"snapshot", "rejected"}.isdisjoint(self.outcome_of(key))

    def record_outcome(self, key: str, outcome: dict[str, Any]) -> None:
        with os_errors_as_save_failed(f"{self.place.url} cannot be written to"):
            self.place.write(f"anchors/{key}.json", json.dumps(outcome).encode())

    def find_package(self, signature: str) -> SnapshotFile | None:
        """The compiled code of a graph, if it still exists."""
        fields = self._read_json(f"packages/{signature}.json")
        try:
            file = decode_file(fields)
        except (TypeError, ValueError):
            return None
        return file if is_present(self.place, file) else None

    def record_package(self, signature: str, file: SnapshotFile) -> None:
        self.place.write(f"packages/{signature}.json", json.dumps(vars(file)).encode())

    def registry_state(self) -> dict[str, Any]:
        """The saved state of the model registry."""
        return self._read_json(REGISTRY_FILE)

    def save_registry_state(self, state: dict[str, Any]) -> None:
        with os_errors_as_save_failed(f"{self.place.url} cannot be written to"):
            self.place.write(REGISTRY_FILE, json.dumps(state, indent=1).encode())

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.place.read(name))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    # Cleanup

    def sweep(self, now: float | None = None) -> list[str]:
        """Complete interrupted commits and delete files that no snapshot needs; return their names.

        Nothing is deleted during a publish, as its files look like leftover ones.
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
        if before is None:  # no publish is in progress, so no lease is held
            deletable += [f"leases/{name}" for name in self.place.list_names("leases")]
        for path in deletable:
            remove = self.place.delete_folder if path.startswith(WORK_PREFIX) else self.place.delete
            remove(path)
        for name in self.place.list_names("packages"):
            if self.find_package(os.path.splitext(name)[0]) is None:
                self.place.delete(f"packages/{name}")
        return deletable


class CompiledCodeCache:
    """Compiled code of one publish: reused from the store, and added after validation."""

    def __init__(self, store: SnapshotStore, *, reuse: bool) -> None:
        self._store, self._reuse = store, reuse
        self._compiled: dict[str, Path] = {}
        self.reused = False

    def get(self, signature: str, path: Path) -> bool:
        """Copy the code of a graph to a path, if it exists and is intact."""
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
        """Remember newly compiled code."""
        self._compiled[signature] = path

    def record(self, files: dict[str, SnapshotFile]) -> None:
        """Add the compiled code to the store, after it was validated."""
        for signature, path in self._compiled.items():
            self._store.record_package(signature, files[path.name])
