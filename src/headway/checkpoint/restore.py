"""Gives a training its state back: from memory that outlived its ranks, else from the store.

Reading is DCP's, so that a checkpoint of any number of ranks fits any other; only where the bytes
come from is ours.
"""

from __future__ import annotations

import base64
import io
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from headway.checkpoint.snapshot.memory import Memory
from headway.checkpoint.state import Parts
from headway.checkpoint.store import dcp
from headway.checkpoint.store.read import Depth, Store
from headway.checkpoint.writer.images import WHOLE


@dataclass(frozen=True)
class Restored:
    """Where training goes on from."""

    step: int
    source: str  # "memory" or the name of the checkpoint
    values: dict[str, Any] = field(default_factory=dict)  # the parts that are plain values
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # why newer ones were passed over


@dataclass(frozen=True)
class Held:
    """One image that a writer holds: the layout of what is in it, and its memory."""

    save: str
    step: int
    number: int
    layout: dict[str, Any]
    values: list[str]
    extra: dict[str, Any]
    memory: Memory


def held(status: Mapping[str, Any], descriptors: Sequence[int]) -> list[Held]:
    """The whole ones; the descriptors are closed."""
    found = []
    for number, (image, descriptor) in enumerate(zip(status["images"], descriptors, strict=True)):
        layout = status["layouts"].get(image.get("layout", ""))
        if image["state"] == WHOLE and layout is not None:
            memory = Memory(descriptor, os.fstat(descriptor).st_size)
            told = image["save"], image["step"], number, layout, image["values"], image["extra"]
            found.append(Held(*told, memory))
        os.close(descriptor)
    return found


def from_memory(parts: Parts, images: Sequence[Held], group: Any) -> dict[str, Any]:
    """Of one save by all ranks: the images of every rank of this machine."""
    return _load(parts, _MemoryReader(images), group)


def from_store(store: str, parts: Parts, group: Any, *, verify: Depth = "quick") -> Restored | None:
    """The newest good one; all ranks read the one that rank 0 has found."""
    found = _agreed(lambda: Store(store).newest_good(verify), group)
    if found.checkpoint is None:
        return None
    one = found.checkpoint
    first, *deltas = Store(store).chain(one)
    full, newest = (dcp.Reader(each.path, check=verify == "full") for each in (first, one))
    metadata = full.read_metadata()
    targets = parts.targets(metadata)
    _read(targets.flat, full, group)
    if deltas:
        whole = newest.read_metadata().state_dict_metadata
        _read({name: targets.flat[name] for name in whole}, newest, group, targets.flat)
        for delta in deltas:
            dcp.apply_rows(delta.path, delta.manifest, targets.flat)
    values = parts.give_back(targets, metadata)
    return Restored(one.step, one.name, values, one.manifest.extra, found.notes)


def _load(parts: Parts, reader: StorageReader, group: Any) -> dict[str, Any]:
    metadata = reader.read_metadata()
    targets = parts.targets(metadata)
    _read(targets.flat, reader, group)
    return parts.give_back(targets, metadata)


def _read(
    flat: dict[str, Any], reader: StorageReader, group: Any, into: dict[str, Any] | None = None
) -> None:
    alone = not dist.is_initialized()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(flat, storage_reader=reader, process_group=group, no_dist=alone)
    if into is not None:
        into.update(flat)


def _agreed(ask: Any, group: Any) -> Any:
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return ask()
    told = [ask() if dist.get_rank(group) == 0 else None]
    source = dist.get_global_rank(group, 0) if group is not None else 0
    dist.broadcast_object_list(told, src=source, group=group)
    return told[0]


class _MemoryReader(StorageReader):
    """Reads what writers hold, by the names that items have on disk."""

    def __init__(self, images: Sequence[Held]) -> None:
        self.tensors = {
            name: (image.memory, at, nbytes)
            for image in images
            for name, _, at, nbytes in image.layout["tensors"]
        }
        self.values = {
            name: value
            for image in images
            for name, value in zip(image.layout["values"], image.values, strict=True)
        }
        self.metadata: Metadata = pickle.loads(base64.b64decode(images[0].layout["metadata"]))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the plan of the save says."""
        return self.metadata

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to open."""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing to forget."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """There is none."""
        return True

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each piece from its image."""
        for one in plan.items:
            name = dcp.item_name(one.storage_index)
            if one.type == LoadItemType.BYTE_IO:
                planner.load_bytes(one, io.BytesIO(base64.b64decode(self.values[name])))
                continue
            target = planner.resolve_tensor(one).detach()
            found = narrow_tensor_by_index(
                self._tensor(name, one), one.storage_offsets, one.lengths
            )
            target.copy_(found)
            planner.commit_tensor(one, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _tensor(self, name: str, one: Any) -> torch.Tensor:
        memory, at, _ = self.tensors[name]
        told = self.metadata.state_dict_metadata[one.storage_index.fqn]
        assert isinstance(told, TensorStorageMetadata)
        offset = one.storage_index.offset
        sizes = next(c.sizes for c in told.chunks if offset is None or c.offsets == offset)
        return memory.tensor(at, told.properties.dtype, sizes)
