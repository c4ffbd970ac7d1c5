"""Checkpoints: what is there, what a Checkpointer restores, and what torch itself reads."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from headway.checkpoint import Checkpointer
from headway.checkpoint.store.store import Store
from headway.publish.anchor import fetch_anchor, find_anchor
from headway.publish.source import open_source, read_tensor
from tests.golden.cases import described, leaves
from tests.golden.states import State, full, numbers, sharded, table

SEALED = ("full", "packed", "sharded")


def read(name: str, files: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, and of the damage that is meant to be there
        return _async_save(files) if name == "async_save" else _store(name, files)


def _store(name: str, files: Path) -> Any:
    url = f"local://{files}/store" if name == "url" else str(files / "store")
    store = Store(url)
    good, bad = store.scan()
    found: dict[str, Any] = {
        "checkpoints": [_manifest(store, one) for one in good],
        "unusable": sorted(one.name for one in bad),
        "restored": _restored(url, _state(name)),
        "published": _published(url, files / "brought"),
    }
    if name == "full":
        found["by torch"] = _by_torch(f"{url}/{good[0].name}")
        found["next batches"] = _next_batches(url)
    if name == "interrupted":
        found["after a save"] = _after_a_save(files)
    return found


def _state(name: str) -> State:
    if name == "full":
        return full(filled=False)
    if name in ("delta", "packed"):
        return table(filled=False)
    if name == "sharded":
        return sharded()
    if name == "anchor":
        return State(parts={"model": torch.nn.Linear(3, 2), "epoch": None})
    return State(parts={"tensor": torch.zeros(64), "epoch": None})


def _manifest(store: Store, one: Any) -> dict[str, Any]:
    told = one.manifest
    return {
        "name": one.name,
        "step": told.step,
        "save_id": told.save_id,
        "world": told.world,
        "made": told.made,
        "sequence": told.sequence,
        "kind": told.kind,
        "parent": told.parent,
        "extra": dict(told.extra),
        "anchor": "anchor" in store.place.list_names(one.name),
        "files": {
            file.name: {"size": file.size, "items": sorted(item.name for item in file.items)}
            for file in told.files
        },
        "good": not store.verify(one, "full"),
    }


def _restored(url: str, state: State) -> dict[str, Any]:
    """What a Checkpointer gives back."""
    checkpointer = Checkpointer(url, state.parts, per_rank=state.own, writer_idle_s=0.1)
    restored = checkpointer.restore()
    checkpointer.close()
    assert restored is not None
    loaded = {**state.loaded(), **restored.values}
    return {
        "step": restored.step,
        "source": restored.source,
        "extra": dict(restored.extra),
        "passed over": sorted(note.partition(" ")[0] for note in restored.notes),
        "state": dict(leaves(loaded)),
        "shared": _shared(state),
    }


def _shared(state: State) -> list[list[str]]:
    """Parameters of the model that are the same one."""
    names: dict[int, list[str]] = {}
    for name, one in getattr(state.parts.get("model"), "state_dict", dict)().items():
        names.setdefault(one.data_ptr(), []).append(name)
    return [one for one in names.values() if len(one) > 1]


def _published(url: str, folder: Path) -> dict[str, Any]:
    """What a publish reads of the newest anchor, or else checkpoint."""
    anchor = find_anchor(url)
    given = open_source(fetch_anchor(anchor, folder))
    return {
        "id": anchor.id,
        "step": anchor.step,
        "extra": dict(anchor.extra),
        "tensors": {name: described(read_tensor(given, name)) for name in sorted(given.shapes)},
    }


def _by_torch(path: str) -> dict[str, Any]:
    """A full checkpoint is one of DCP."""
    reader = dcp.FileSystemReader(path)
    known = reader.read_metadata().state_dict_metadata
    state: dict[str, Any] = {
        name: torch.empty(one.size, dtype=one.properties.dtype) if hasattr(one, "size") else None
        for name, one in known.items()
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return {name: described(one) for name, one in state.items() if isinstance(one, torch.Tensor)}


def _next_batches(url: str) -> list[list[int]]:
    """Where the data goes on."""
    state = full(filled=False)
    checkpointer = Checkpointer(url, state.parts, per_rank=state.own, writer_idle_s=0.1)
    assert checkpointer.restore() is not None
    checkpointer.close()
    return [batch.tolist() for batch in state.parts["data"]]


def _after_a_save(files: Path) -> list[str]:
    """The first save clears up after those that were killed."""
    store = files / "store"
    state = State(parts={"tensor": numbers((64,)), "epoch": 6})
    checkpointer = Checkpointer(store, state.parts, writer_idle_s=0.1)
    checkpointer.save(6)
    checkpointer.close()
    return sorted(name for name in os.listdir(store) if name != ".lock")


def _async_save(files: Path) -> Any:
    torch_files = {
        path.name: dict(leaves(torch.load(path, weights_only=True)))
        for path in sorted(files.glob("*.pt"))
    }
    return {"torch.load": torch_files, "by torch": _by_torch(str(files / "dcp"))}


def sealed(files: Path) -> list[Path]:
    """Every file of the first checkpoint."""
    step = sorted((files / "store").glob("step-*"))[0]
    return [path for path in sorted(step.iterdir()) if path.stat().st_size]


def refused(files: Path) -> bool:
    """No checkpoint is good, as all of them build on the first one."""
    return Store(files / "store").latest_valid("full").checkpoint is None
