"""Anchors: a checkpoint of a store, a DCP folder, or a `torch.save` file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.cleanup import pin
from headway.checkpoint.store.store import Checkpoint, Store, UnreadableCheckpoint
from headway.errors import CheckpointDamaged, UsageError, split_code, with_code
from headway.storage.place import LocalPlace, open_place


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """One checkpoint to publish, identified by its content, not by its path."""

    id: str
    kind: str
    path: str
    order: tuple[str, int] = ("", 0)  # its store, and its position there
    step: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    chain: tuple[Checkpoint, ...] = ()  # in a store: its base checkpoints, and itself last
    damage: str = ""  # why it cannot be used

    def key(self, recipe: str) -> str:
        """Key of this anchor under a recipe; published once."""
        return hashlib.sha256(f"{self.id} {recipe}".encode()).hexdigest()[:32]

    def to_manifest(self) -> dict[str, Any]:
        """Fields for the manifest of a snapshot."""
        return {
            "id": self.id,
            "path": self.path,
            "order": list(self.order),
            "step": self.step,
            "run": self.extra.get("run"),
            "ledger": self.extra.get("ledger"),
            "metrics": self.extra.get("metrics") or {},
        }


def find_anchor(url: str) -> Anchor:
    """The anchor at a path or URL; of a store, the newest anchor, else the newest checkpoint."""
    if "://" not in url or url.startswith("file://"):
        path = Path(url.removeprefix("file://")).expanduser().absolute()
        if path.is_file():
            return _file_anchor(path)
        if not path.is_dir():
            raise UsageError(f"there is no anchor at {url}", code="anchor-not-found")
        if (path / manifests.MANIFEST).is_file():
            return _stored_anchor(Store(path.parent), path.name)
        if (path / manifests.METADATA).is_file():
            return _dcp_anchor(path)
    store = Store(url)
    readable, unreadable = store.scan()
    if not readable and not unreadable:
        above, _, name = url.rstrip("/").rpartition("/")
        if manifests.REMOTE_STEP.fullmatch(name):
            return _stored_anchor(Store(above), name)
        raise UsageError(f"{url} is not a checkpoint and contains none", code="anchor-not-found")
    pinned = [checkpoint for checkpoint in store.checkpoints() if _pinned(store, checkpoint.name)]
    newest = pinned[0] if pinned else store.latest_valid().checkpoint
    for checkpoint in unreadable:
        if _pinned(store, checkpoint.name) and (newest is None or checkpoint.step > newest.step):
            return _unreadable_anchor(store, checkpoint)
    if newest is None:
        raise CheckpointDamaged(
            f"none of the checkpoints in {url} is usable", code="no-usable-checkpoint"
        )
    return _committed_anchor(store, newest)


def pending_anchors(url: str) -> Iterator[Anchor]:
    """Anchors to publish, the oldest first: pinned checkpoints of a store, or DCP folders."""
    store = Store(url)
    for checkpoint in reversed(store.checkpoints()):
        if _pinned(store, checkpoint.name):
            yield _committed_anchor(store, checkpoint)
    for unreadable in store.scan()[1]:
        if _pinned(store, unreadable.name):
            yield _unreadable_anchor(store, unreadable)
    if isinstance(store.place, LocalPlace):
        folders = [Path(store.place.path(name)) for name in store.place.list_names()]
        dcp_folders = [checkpoint for checkpoint in folders if _is_plain(checkpoint)]
        yield from map(
            _dcp_anchor, sorted(dcp_folders, key=lambda checkpoint: checkpoint.stat().st_mtime)
        )


def _is_plain(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and _has(path, manifests.METADATA) and not _has(path, manifests.MANIFEST)


def _has(path: Path, name: str) -> bool:
    return (path / name).is_file()


def _pinned(store: Store, name: str) -> bool:
    return manifests.ANCHOR in store.place.list_names(name)


def _stored_anchor(store: Store, name: str) -> Anchor:
    readable, unreadable = store.scan()
    for checkpoint in readable:
        if checkpoint.name == name:
            return _committed_anchor(store, checkpoint)
    absent = with_code("it is not committed", code="not-committed")
    reason, code = split_code(
        next((checkpoint.why for checkpoint in unreadable if checkpoint.name == name), absent)
    )
    text = f"the checkpoint {name} cannot be published: {reason}"
    raise CheckpointDamaged(text, code=code or "checkpoint-damaged")


def _committed_anchor(store: Store, checkpoint: Checkpoint) -> Anchor:
    return Anchor(
        id=hashlib.sha256(manifests.manifest_to_bytes(checkpoint.manifest)).hexdigest(),
        kind="store",
        path=checkpoint.path,
        order=(store.place.url, checkpoint.manifest.sequence),
        step=checkpoint.step,
        extra=checkpoint.manifest.extra,
        chain=tuple(store.chain(checkpoint)),
        damage=store.verify(checkpoint),
    )


def _unreadable_anchor(store: Store, checkpoint: UnreadableCheckpoint) -> Anchor:
    """An anchor with an unreadable manifest, which is rejected, not skipped."""
    path = store.place.path(checkpoint.name)
    return Anchor(
        id=hashlib.sha256(f"{path} {checkpoint.why}".encode()).hexdigest(),
        kind="store",
        path=path,
        order=(store.place.url, 0),
        step=checkpoint.step,
        damage=checkpoint.why,
    )


def _dcp_anchor(path: Path) -> Anchor:
    """DCP writes `.metadata` last; it and the size and time of the files identify the content."""
    digest = hashlib.sha256((path / manifests.METADATA).read_bytes())
    for file in sorted(path.glob("*.distcp")):
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    changed = int((path / manifests.METADATA).stat().st_mtime_ns)
    return Anchor(
        id=digest.hexdigest(), kind="dcp", path=str(path), order=(str(path.parent), changed)
    )


def _file_anchor(path: Path) -> Anchor:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return Anchor(id=digest.hexdigest(), kind="file", path=str(path))


def fetch_anchor(anchor: Anchor, folder: Path) -> Anchor:
    """The anchor on this machine; files behind a URL are downloaded to a folder."""
    if anchor.kind != "store" or "://" not in anchor.path:
        return anchor
    local = []
    for checkpoint in anchor.chain:
        place = open_place(checkpoint.path)
        target = folder / checkpoint.name
        target.mkdir(parents=True)
        (target / manifests.MANIFEST).write_bytes(place.read(manifests.MANIFEST))
        for file in checkpoint.manifest.files:
            with (target / os.path.basename(file.name)).open("wb") as out:
                for piece in place.read_blocks(file.name):
                    out.write(piece)
        local.append(Checkpoint(checkpoint.name, str(target), checkpoint.manifest))
    return Anchor(**{**vars(anchor), "chain": tuple(local)})


def last_anchor(url: str, since: float) -> str | None:
    """Path of the last anchor created since then, else of the last checkpoint, which is pinned.

    Retention keeps pinned checkpoints until they are published.
    """
    store = Store(url)
    recent = [checkpoint for checkpoint in store.checkpoints() if checkpoint.manifest.made >= since]
    usable = [checkpoint for checkpoint in recent if not store.verify(checkpoint)]
    pinned = [
        checkpoint
        for checkpoint in usable
        if manifests.ANCHOR in store.place.list_names(checkpoint.name)
    ]
    if not usable:
        return None
    if not pinned:
        pin(url, usable[0])
    return (pinned or usable)[0].path
