"""DCP metadata, and tensors as DCP stores them. Imports torch."""

from __future__ import annotations

import ctypes
import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)

from headway.checkpoint.format import unpickling
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX, RankPart, delta_tables
from headway.errors import SaveFailed, UsageError

ZSTD_DESCRIPTOR = "stream.zstd/1"


# The end of a tensor name that looks like what item names append.
ITEM_LIKE = re.compile(rf"(\[[\d, ]*\]|{IDS_SUFFIX}|{ROWS_SUFFIX})\Z")


def tensor_pickle(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """The `data.pkl` of a row-major tensor as `torch.save` writes it, without the data.

    The tensor refers to its data by a persistent id, for which `_StandIn` is the placeholder.
    """
    count = 1
    stride: list[int] = []
    for size in reversed(shape):
        stride.insert(0, count)
        count *= max(size, 1)
    elements = 0 if 0 in shape else count
    arguments: tuple[Any, ...] = (tuple(shape), tuple(stride), False, OrderedDict())
    storage: tuple[Any, ...]
    rebuild: Any
    if dtype in torch.storage._new_dtypes():
        rebuild, arguments = torch._utils._rebuild_tensor_v3, (*arguments, dtype)
        storage = (torch.storage.UntypedStorage, "0", "cpu", elements * dtype.itemsize)
    else:
        rebuild = torch._utils._rebuild_tensor_v2
        storage_types = torch.storage._dtype_to_storage_type_map()
        if dtype not in storage_types or str(dtype).startswith("torch.q"):
            raise UsageError(
                f"tensors of type {dtype} cannot be saved as raw bytes",
                code="dtype-not-supported",
                dtype=str(dtype),
            )
        storage = (getattr(torch, storage_types[dtype]), "0", "cpu", elements)
    stand_in = _StandIn()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
            return ("storage", *storage) if obj is stand_in else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(_Rebuilt(rebuild, (stand_in, 0, *arguments)))
    return out.getvalue()


class _StandIn:
    pass


class _Rebuilt:
    def __init__(self, rebuild: Any, args: tuple[Any, ...]) -> None:
        self._reduced = rebuild, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a row-major tensor on the CPU; they keep the tensor alive."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("the tensor must be contiguous and on the CPU")
    if tensor.numel() == 0:
        return memoryview(b"")
    size = tensor.numel() * tensor.element_size()
    content = (ctypes.c_char * size).from_address(tensor.data_ptr())
    content.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(content).cast("B")


def item_name(index: MetadataIndex) -> str:
    """The name of an item, unique in a checkpoint."""
    if index.offset is None or not any(index.offset):
        return f"{index.fqn}[]" if ITEM_LIKE.search(index.fqn) else index.fqn
    return f"{index.fqn}[{', '.join(map(str, index.offset))}]"


def build_metadata(
    planned: Metadata | bytes, parts: Sequence[RankPart], save_id: str = ""
) -> bytes:
    """The content of `.metadata`: the global plan, and where each item is stored.

    Items are identified by `item_name`. It needs the layout of the parts only, not their data. For
    a delta it lists the tensors that are stored as a whole.
    """
    plan = unpickling.load_metadata(planned) if isinstance(planned, bytes) else planned
    missing = {item_name(index): index for index in item_indices(plan)}
    by_rows = set()  # tensors of which at least one shard is stored by rows
    for part in parts:
        for name in delta_tables(part.file):
            by_rows.add(_pop_planned(missing, name, part).fqn)
    storage = {}
    for part in parts:
        for item in part.file.items:
            if item.name.endswith((IDS_SUFFIX, ROWS_SUFFIX)):
                continue
            index = _pop_planned(missing, item.name, part)
            if index.fqn in by_rows:
                continue
            transforms = None if item.unpacked is None else [ZSTD_DESCRIPTOR]
            storage[index] = _StorageInfo(part.file.name, item.offset, item.length, transforms)
    if missing:
        absent = next(iter(missing))
        raise SaveFailed(
            f"no rank has saved {absent}, which is in the plan", code="item-missing", item=absent
        )
    tensors = {
        name: entry for name, entry in plan.state_dict_metadata.items() if name not in by_rows
    }
    plan = replace(plan, state_dict_metadata=tensors)
    storage_meta = StorageMeta(save_id=save_id)
    version = CURRENT_DCP_VERSION
    return pickle.dumps(
        replace(plan, storage_data=storage, storage_meta=storage_meta, version=version)
    )


def _pop_planned(missing: dict[str, MetadataIndex], name: str, part: RankPart) -> MetadataIndex:
    if name not in missing:
        raise SaveFailed(
            f"rank {part.rank} has saved {name}, which is not in the plan",
            code="item-not-planned",
            rank=part.rank,
            item=name,
        )
    return missing.pop(name)


def item_indices(planned: Metadata) -> Iterator[MetadataIndex]:
    """The indices of all items of a checkpoint."""
    for name, entry in planned.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            yield MetadataIndex(name)
            continue
        for at, chunk in enumerate(entry.chunks):
            yield MetadataIndex(name, chunk.offsets, at)
