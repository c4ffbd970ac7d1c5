"""Restore a state from staging buffers that outlived their ranks, else from the store.

DCP reads it, so a checkpoint can be restored by any number of ranks; only the source of the bytes
is Headway's own.
"""

from __future__ import annotations

import base64
import io
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from headway.checkpoint.engine.buffers import READY
from headway.checkpoint.engine.gpu_transfer import gpu_of
from headway.checkpoint.format import checkpoint_reader, dcp
from headway.checkpoint.format.delta import apply_rows
from headway.checkpoint.format.unpickling import load_metadata, load_value
from headway.checkpoint.matching import Mismatch, merge_mismatches
from headway.checkpoint.staging import MappedBuffer
from headway.checkpoint.state_tree import StateTree
from headway.checkpoint.store.layout import delta_tables
from headway.checkpoint.store.store import Checkpoint, RestorePoint, Store
from headway.errors import CheckpointDamaged, HeadwayError, HeadwayWarning, RestoreFailed, with_code
from headway.storage import codecs


@dataclass(frozen=True)
class RestoredState:
    """Where training goes on from."""

    step: int
    source: str  # "memory" or the name of the checkpoint
    values: dict[str, Any] = field(default_factory=dict)  # the parts that are plain values
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # why newer ones were passed over


@dataclass(frozen=True)
class HeldBuffer:
    """One image that a writer holds: the layout of what is in it, and its memory."""

    save: str
    step: int
    world: int  # that many ranks hold it together
    layout: dict[str, Any]
    values: list[str]
    extra: dict[str, Any]
    memory: MappedBuffer


def held_buffers(status: Mapping[str, Any], descriptors: Sequence[int]) -> list[HeldBuffer]:
    """The whole ones; the descriptors are closed."""
    found = []
    for image, descriptor in zip(status["images"], descriptors, strict=True):
        layout = status["layouts"].get(image.get("layout", ""))
        if image["state"] == READY and layout is not None:
            memory = MappedBuffer(descriptor, os.fstat(descriptor).st_size)
            told = image["save"], image["step"], image["world"], layout
            found.append(HeldBuffer(*told, image["values"], image["extra"], memory))
        os.close(descriptor)
    return found


def from_memory(
    parts: StateTree, images: Sequence[HeldBuffer], group: Any, strict: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Of one save by all ranks: the images of every rank of this machine; values, and notes."""
    reader = _MemoryReader(images)
    metadata = reader.read_metadata()
    wanted = parts.value_names(metadata)
    values = _read(dict.fromkeys(wanted), reader, group, trusted=True)
    targets = parts.match(metadata, values)
    notes = _check_mismatch(targets.mismatch, "in memory", strict, group)
    _read(targets.flat, reader, group, trusted=True)
    return parts.give_back(targets, values, metadata), notes


def latest_restore_point(
    store: str, group: Any, damaged: Mapping[str, str] | None = None
) -> RestorePoint:
    """The newest good one, as rank 0 sees it; `damaged`: what has shown that it is not."""
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return Store(store).newest_good(damaged=damaged)
    first = dist.get_rank(group) == 0
    told: list[Any] = [Store(store).newest_good(damaged=damaged) if first else None]
    source = dist.get_global_rank(group, 0) if group is not None else 0
    dist.broadcast_object_list(told, src=source, group=group)
    found: RestorePoint = told[0]
    return found


def from_store(
    store: str,
    parts: StateTree,
    group: Any,
    found: RestorePoint | None = None,
    *,
    strict: bool = True,
    trust: bool | None = None,
) -> RestoredState | None:
    """From `found`, the newest; from an older one if it turns out to be damaged, which is said.

    `strict`: an error if the checkpoint and the parts have other tensors, before any is changed.
    `trust`: whether what is read may run code; None: if this user alone can have written it.
    """
    damaged: dict[str, str] = {}
    found = found or latest_restore_point(store, group)
    while (one := found.checkpoint) is not None:
        try:
            values, left_out = _load_chain(found.chain, parts, group, strict, trust)
        except _DamagedOnRanks as error:
            damaged[error.one.manifest.save_id] = error.why
            found = latest_restore_point(store, group, damaged)
            continue
        _warn_skipped(store, found, f"{one.name} is restored")
        notes = (*found.notes, *left_out)
        return RestoredState(one.step, one.name, values, one.manifest.extra, notes)
    if damaged:  # and some of it is in the state by now
        why = "; ".join(found.notes)
        raise CheckpointDamaged(
            f"no checkpoint of {store} can be restored: {why}",
            code="no-good-checkpoint",
            notes=found.notes,
        )
    _warn_skipped(store, found, "nothing is restored")
    return None


def _warn_skipped(store: str, found: RestorePoint, then: str) -> None:
    if found.notes:
        notes = "; ".join(found.notes)
        text = f"not all checkpoints of {store} are good: {notes}; {then}"
        warnings.warn(HeadwayWarning(text, code="checkpoints-passed-over"), stacklevel=4)


class _DamagedOnRanks(Exception):
    """Found on all ranks at once: which checkpoint it is, and why it cannot be used."""

    def __init__(self, one: Checkpoint, why: str) -> None:
        self.one, self.why = one, why


def _load_chain(
    chain: Sequence[Checkpoint], parts: StateTree, group: Any, strict: bool, trust: bool | None
) -> tuple[dict[str, Any], list[str]]:
    """A full checkpoint and the deltas on it: of each tensor what was saved of it last."""
    if any(item.unpacked for one in chain for f in one.manifest.files for item in f.items):
        codecs.require_zstd()
    readers = [
        checkpoint_reader.CheckpointReader(one.path, check=True, trusted=trust) for one in chain
    ]
    for one, reader in zip(chain, readers, strict=True):
        _on_all_ranks(one, reader.read_metadata, group)
    metadata = readers[0].read_metadata()
    known = {
        dcp.item_name(index): index.fqn
        for reader in readers
        for index in dcp.item_indices(reader.read_metadata())
    }
    by_rows = [
        {known.get(item, "") for file in one.manifest.files for item in delta_tables(file)}
        for one in chain
    ]
    whole = {  # the last time that it was saved as a whole; of what other ranks have, too
        name: max(at for at in range(len(chain)) if name not in by_rows[at])
        for name in metadata.state_dict_metadata
    }
    for one, names in zip(chain, by_rows, strict=True):
        if not names <= whole.keys():
            why = "it has rows of a tensor that it does not name"
            raise _DamagedOnRanks(one, with_code(why, code="rows-not-planned"))

    def read(wanted: dict[str, Any]) -> None:
        for at in sorted(set(whole.values())):
            mine = {name: target for name, target in wanted.items() if whole[name] == at}
            try:
                _read(mine, readers[at], group, trusted=readers[at].trusted)
            except CheckpointException as error:
                raise _classify(chain[at], error) from None
            wanted.update(mine)

    values = dict.fromkeys(parts.value_names(metadata))
    read(values)
    targets = parts.match(metadata, values)
    notes = _check_mismatch(targets.mismatch, chain[-1].name, strict, group)
    read(targets.flat)
    for at, one in enumerate(chain):
        here = by_rows[at] & targets.flat.keys()
        rows = {name: targets.flat[name] for name in here if whole[name] < at}
        told: dict[str, Any] = {
            name: readers[whole[name]].read_metadata().state_dict_metadata[name] for name in rows
        }
        if by_rows[at]:
            _on_all_ranks(one, partial(apply_rows, one.path, one.manifest, rows, told), group)
    return parts.give_back(targets, values, metadata), notes


def _check_mismatch(mine: Mismatch, name: str, strict: bool, group: Any) -> list[str]:
    """What does not fit, of all ranks: an error on each of them, or notes."""
    everyone = [mine]
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        everyone *= dist.get_world_size(group)
        dist.all_gather_object(everyone, mine, group=group)
    mismatch = merge_mismatches(everyone)
    if mismatch and strict:
        raise mismatch.error(name)
    return mismatch.notes(name)


def _on_all_ranks(one: Checkpoint, do: Callable[[], Any], group: Any) -> None:
    """On all ranks; what is damaged for one of them is for all."""
    mine = ""
    try:
        do()
    except (CheckpointDamaged, OSError) as error:
        mine = _failure_reason(error)
    told = [mine]
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        told *= dist.get_world_size(group)
        dist.all_gather_object(told, mine, group=group)
    if any(told):
        raise _DamagedOnRanks(one, next(filter(None, told)))


def _classify(one: Checkpoint, error: CheckpointException) -> BaseException:
    """A damaged file is passed over; anything else is for the user to see."""
    found = [exception for exception, _ in error.failures.values()]
    if all(isinstance(exception, (CheckpointDamaged, OSError)) for exception in found):
        return _DamagedOnRanks(one, _failure_reason(found[0]))
    first = next(e for e in found if not isinstance(e, (CheckpointDamaged, OSError)))
    if isinstance(first, HeadwayError):
        return first
    why = f"{type(first).__name__}: {first}"
    return RestoreFailed(f"{one.name} cannot be restored: {why}")


def _failure_reason(error: BaseException) -> str:
    """The clause that follows "it is passed over"."""
    if isinstance(error, FileNotFoundError):
        name = os.path.basename(str(error.filename))
        return with_code(f"{name} is missing", code="file-missing")
    if isinstance(error, OSError):
        return with_code(f"it cannot be read: {error.strerror or error}", code="not-readable")
    assert isinstance(error, CheckpointDamaged)
    return with_code(str(error.fields.get("why", error)), code=error.code)


def _read(
    flat: dict[str, Any], reader: StorageReader, group: Any, *, trusted: bool
) -> dict[str, Any]:
    """Read into the tensors of `flat`, and put the values of other names into it."""
    alone = not dist.is_initialized()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(
                flat,
                storage_reader=reader,
                planner=_Planner(trusted),
                process_group=group,
                no_dist=alone,
            )
        except CheckpointException as error:
            mine, _ = error.failures.get(0 if alone else dist.get_rank(group), (None, None))
            if mine is not None and not isinstance(mine, Exception):
                raise mine from None  # an interrupt, which is no failure of the load
            raise
    return flat


class _Planner(DefaultLoadPlanner):
    """Loads values by the rules of `store.trust`."""

    def __init__(self, trusted: bool) -> None:
        super().__init__(flatten_state_dict=False)
        self._trusted = trusted

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """CheckpointUntrusted if it needs a class that is not allowed."""
        name = read_item.dest_index.fqn
        self.original_state_dict[name] = load_value(value, trusted=self._trusted)


class _MemoryReader(StorageReader):
    """Reads what writers hold, by the names that items have on disk."""

    def __init__(self, images: Sequence[HeldBuffer]) -> None:
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
        self.metadata = load_metadata(base64.b64decode(images[0].layout["metadata"]))

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
        """Copy each piece from its image; what goes to a GPU, all together."""
        over_bus: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for one in plan.items:
            name = dcp.item_name(one.storage_index)
            if one.type == LoadItemType.BYTE_IO:
                planner.load_bytes(one, io.BytesIO(base64.b64decode(self.values[name])))
                continue
            target = planner.resolve_tensor(one).detach()
            found = narrow_tensor_by_index(
                self._tensor(name, one), one.storage_offsets, one.lengths
            )
            if target.is_cuda and target.is_contiguous() and found.is_contiguous():
                over_bus.setdefault(target.device, []).append((target, found))
            else:
                target.copy_(found)
            planner.commit_tensor(one, target)
        for device, pairs in over_bus.items():
            gpu_of(device).lanes.to_device(pairs)
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


def newest_common_save(ranks: Sequence[Mapping[str, int]]) -> str:
    """Of the saves that all ranks have, with their steps; empty if there is none.

    Two saves may be of one step, and all ranks have to choose the same one.
    """
    common = set.intersection(*map(set, ranks))
    return max(common, key=lambda save: (ranks[0][save], save), default="")
