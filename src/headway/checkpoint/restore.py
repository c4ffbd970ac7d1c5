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
    """What training continues from."""

    step: int
    source: str  # "memory" or the name of the checkpoint
    values: dict[str, Any] = field(default_factory=dict)  # parts that are plain values
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # why newer checkpoints were skipped


@dataclass(frozen=True)
class HeldBuffer:
    """A staging buffer held by a writer: the layout of its content, and its memory."""

    save: str
    step: int
    world: int  # number of ranks of the save
    layout: dict[str, Any]
    values: list[str]
    extra: dict[str, Any]
    memory: MappedBuffer


def held_buffers(status: Mapping[str, Any], descriptors: Sequence[int]) -> list[HeldBuffer]:
    """The complete buffers; the descriptors are closed."""
    buffers = []
    for buffer, descriptor in zip(status["images"], descriptors, strict=True):
        layout = status["layouts"].get(buffer.get("layout", ""))
        if buffer["state"] == READY and layout is not None:
            memory = MappedBuffer(descriptor, os.fstat(descriptor).st_size)
            identity = buffer["save"], buffer["step"], buffer["world"], layout
            buffers.append(HeldBuffer(*identity, buffer["values"], buffer["extra"], memory))
        os.close(descriptor)
    return buffers


def from_memory(
    tree: StateTree, buffers: Sequence[HeldBuffer], group: Any, strict: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Load the buffers of one save by all ranks of this machine; return values and notes."""
    reader = _MemoryReader(buffers)
    metadata = reader.read_metadata()
    names = tree.value_names(metadata)
    values = _read(dict.fromkeys(names), reader, group, trusted=True)
    targets = tree.match(metadata, values)
    notes = _check_mismatch(targets.mismatch, "in memory", strict, group)
    _read(targets.flat, reader, group, trusted=True)
    return tree.load(targets, values, metadata), notes


def latest_restore_point(
    store: str, group: Any, damaged: Mapping[str, str] | None = None
) -> RestorePoint:
    """The latest valid checkpoint as seen by rank 0.

    `damaged` lists checkpoints that could not be read, by save id.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return Store(store).latest_valid(damaged=damaged)
    first = dist.get_rank(group) == 0
    box: list[Any] = [Store(store).latest_valid(damaged=damaged) if first else None]
    source = dist.get_global_rank(group, 0) if group is not None else 0
    dist.broadcast_object_list(box, src=source, group=group)
    point: RestorePoint = box[0]
    return point


def from_store(
    store: str,
    tree: StateTree,
    group: Any,
    point: RestorePoint | None = None,
    *,
    strict: bool = True,
    trust: bool | None = None,
) -> RestoredState | None:
    """Load `found`, by default the latest checkpoint; if it is damaged, warn and load an older one.

    With `strict`, raise if the tensors of the checkpoint and the parts differ, before any is
    changed. `trust` says whether objects may run code when they are loaded; None allows it only if
    nobody but this user can have written them.
    """
    damaged: dict[str, str] = {}
    point = point or latest_restore_point(store, group)
    while (checkpoint := point.checkpoint) is not None:
        try:
            values, mismatch_notes = _load_chain(point.chain, tree, group, strict, trust)
        except _DamagedOnRanks as error:
            damaged[error.checkpoint.manifest.save_id] = error.why
            point = latest_restore_point(store, group, damaged)
            continue
        _warn_skipped(store, point, f"restoring {checkpoint.name}")
        notes = (*point.notes, *mismatch_notes)
        return RestoredState(
            checkpoint.step, checkpoint.name, values, checkpoint.manifest.extra, notes
        )
    if damaged:  # the state may be partly overwritten
        reason = "; ".join(point.notes)
        raise CheckpointDamaged(
            f"none of the checkpoints in {store} can be restored: {reason}",
            code="no-good-checkpoint",
            notes=point.notes,
        )
    _warn_skipped(store, point, "nothing was restored")
    return None


def _warn_skipped(store: str, point: RestorePoint, outcome: str) -> None:
    if point.notes:
        notes = "; ".join(point.notes)
        text = f"some checkpoints in {store} are not valid: {notes}; {outcome}"
        warnings.warn(HeadwayWarning(text, code="checkpoints-passed-over"), stacklevel=4)


class _DamagedOnRanks(Exception):
    """Raised on all ranks: which checkpoint cannot be used, and why."""

    def __init__(self, one: Checkpoint, why: str) -> None:
        self.checkpoint, self.why = one, why


def _load_chain(
    chain: Sequence[Checkpoint], tree: StateTree, group: Any, strict: bool, trust: bool | None
) -> tuple[dict[str, Any], list[str]]:
    """Load a full checkpoint and its deltas: the last saved value of each tensor."""
    if any(
        item.unpacked for checkpoint in chain for f in checkpoint.manifest.files for item in f.items
    ):
        codecs.require_zstd()
    readers = [
        checkpoint_reader.CheckpointReader(checkpoint.path, check=True, trusted=trust)
        for checkpoint in chain
    ]
    for checkpoint, reader in zip(chain, readers, strict=True):
        _on_all_ranks(checkpoint, reader.read_metadata, group)
    metadata = readers[0].read_metadata()
    tensor_names = {
        dcp.item_name(index): index.fqn
        for reader in readers
        for index in dcp.item_indices(reader.read_metadata())
    }
    by_rows = [
        {
            tensor_names.get(item, "")
            for file in checkpoint.manifest.files
            for item in delta_tables(file)
        }
        for checkpoint in chain
    ]
    # by tensor: the last link that stores it as a whole; includes tensors of other ranks
    base_index = {
        name: max(at for at in range(len(chain)) if name not in by_rows[at])
        for name in metadata.state_dict_metadata
    }
    for checkpoint, names in zip(chain, by_rows, strict=True):
        if not names <= base_index.keys():
            reason = "it has rows of a tensor that its metadata does not list"
            raise _DamagedOnRanks(checkpoint, with_code(reason, code="rows-not-planned"))

    def read(wanted: dict[str, Any]) -> None:
        for at in sorted(set(base_index.values())):
            mine = {name: target for name, target in wanted.items() if base_index[name] == at}
            try:
                _read(mine, readers[at], group, trusted=readers[at].trusted)
            except CheckpointException as error:
                raise _classify(chain[at], error) from None
            wanted.update(mine)

    values = dict.fromkeys(tree.value_names(metadata))
    read(values)
    targets = tree.match(metadata, values)
    notes = _check_mismatch(targets.mismatch, chain[-1].name, strict, group)
    read(targets.flat)
    for at, checkpoint in enumerate(chain):
        here = by_rows[at] & targets.flat.keys()
        rows = {name: targets.flat[name] for name in here if base_index[name] < at}
        metadata_of: dict[str, Any] = {
            name: readers[base_index[name]].read_metadata().state_dict_metadata[name]
            for name in rows
        }
        if by_rows[at]:
            _on_all_ranks(
                checkpoint,
                partial(apply_rows, checkpoint.path, checkpoint.manifest, rows, metadata_of),
                group,
            )
    return tree.load(targets, values, metadata), notes


def _check_mismatch(local: Mismatch, name: str, strict: bool, group: Any) -> list[str]:
    """Combine the mismatches of all ranks: raise on each of them, or return notes."""
    everyone = [local]
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        everyone *= dist.get_world_size(group)
        dist.all_gather_object(everyone, local, group=group)
    mismatch = merge_mismatches(everyone)
    if mismatch and strict:
        raise mismatch.error(name)
    return mismatch.notes(name)


def _on_all_ranks(checkpoint: Checkpoint, action: Callable[[], Any], group: Any) -> None:
    """Call it on all ranks; if a checkpoint is damaged for one rank, it is for all."""
    reason = ""
    try:
        action()
    except (CheckpointDamaged, OSError) as error:
        reason = _failure_reason(error)
    reasons = [reason]
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        reasons *= dist.get_world_size(group)
        dist.all_gather_object(reasons, reason, group=group)
    if any(reasons):
        raise _DamagedOnRanks(checkpoint, next(filter(None, reasons)))


def _classify(checkpoint: Checkpoint, error: CheckpointException) -> BaseException:
    """Skip a checkpoint with damaged files; report any other error."""
    errors = [exception for exception, _ in error.failures.values()]
    if all(isinstance(exception, (CheckpointDamaged, OSError)) for exception in errors):
        return _DamagedOnRanks(checkpoint, _failure_reason(errors[0]))
    first = next(e for e in errors if not isinstance(e, (CheckpointDamaged, OSError)))
    if isinstance(first, HeadwayError):
        return first
    reason = f"{type(first).__name__}: {first}"
    return RestoreFailed(f"{checkpoint.name} cannot be restored: {reason}")


def _failure_reason(error: BaseException) -> str:
    """The clause after "NAME was skipped"."""
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
    """Read the tensors of `flat` in place, and add the values of other names to it."""
    single = not dist.is_initialized()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(
                flat,
                storage_reader=reader,
                planner=_Planner(trusted),
                process_group=group,
                no_dist=single,
            )
        except CheckpointException as error:
            failure, _ = error.failures.get(0 if single else dist.get_rank(group), (None, None))
            if failure is not None and not isinstance(failure, Exception):
                raise failure from None  # an interrupt is not a failure of the load
            raise
    return flat


class _Planner(DefaultLoadPlanner):
    """Loads values by the rules of `format.unpickling`."""

    def __init__(self, trusted: bool) -> None:
        super().__init__(flatten_state_dict=False)
        self._trusted = trusted

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Raise CheckpointUntrusted if the value needs a class that is not allowed."""
        name = read_item.dest_index.fqn
        self.original_state_dict[name] = load_value(value, trusted=self._trusted)


class _MemoryReader(StorageReader):
    """Reads the buffers that writers hold, by the item names on disk."""

    def __init__(self, buffers: Sequence[HeldBuffer]) -> None:
        self.tensors = {
            name: (buffer.memory, at, nbytes)
            for buffer in buffers
            for name, _, at, nbytes in buffer.layout["tensors"]
        }
        self.values = {
            name: value
            for buffer in buffers
            for name, value in zip(buffer.layout["values"], buffer.values, strict=True)
        }
        self.metadata = load_metadata(base64.b64decode(buffers[0].layout["metadata"]))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the save plan."""
        return self.metadata

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None: ...

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each item from its buffer; items for a GPU are copied together."""
        to_gpu: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for item in plan.items:
            name = dcp.item_name(item.storage_index)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(base64.b64decode(self.values[name])))
                continue
            target = planner.resolve_tensor(item).detach()
            source = narrow_tensor_by_index(
                self._tensor(name, item), item.storage_offsets, item.lengths
            )
            if target.is_cuda and target.is_contiguous() and source.is_contiguous():
                to_gpu.setdefault(target.device, []).append((target, source))
            else:
                target.copy_(source)
            planner.commit_tensor(item, target)
        for device, pairs in to_gpu.items():
            gpu_of(device).transfer.to_device(pairs)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _tensor(self, name: str, item: Any) -> torch.Tensor:
        memory, at, _ = self.tensors[name]
        entry = self.metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        offset = item.storage_index.offset
        sizes = next(c.sizes for c in entry.chunks if offset is None or c.offsets == offset)
        return memory.tensor(at, entry.properties.dtype, sizes)


def newest_common_save(ranks: Sequence[Mapping[str, int]]) -> str:
    """The newest save that all ranks hold; empty if there is none. Values are steps.

    Several saves may have the same step; all ranks choose the same save.
    """
    common = set.intersection(*map(set, ranks))
    return max(common, key=lambda save: (ranks[0][save], save), default="")
