"""Apply the table rows of a delta checkpoint to the tensors of the checkpoint it builds on.

A shard of which many rows have changed is stored whole, next to the rows of other shards.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.checkpoint.utils import find_tensor_shard

from headway.checkpoint.format import checkpoint_reader, dcp
from headway.checkpoint.store.layout import IDS_SUFFIX, ROWS_SUFFIX, Item, Manifest
from headway.storage.codecs import UnreadableData, crc32_of

TensorPart = tuple[Tensor, ChunkStorageMetadata]  # memory, and the part of the tensor that it holds


def apply_rows(
    path: str,
    manifest: Manifest,
    flat: Mapping[str, Any],
    metadata_of: Mapping[str, TensorStorageMetadata],
) -> None:
    """Write the rows that a delta stores of these tensors into them.

    `metadata_of` describes each tensor in the checkpoint that stores it as a whole. The sharding
    may differ from that of the delta; a rank reads only what overlaps with its memory.
    """
    delta = _Delta(path, manifest)
    reads = [
        (name, chunk, local_parts)
        for name, target in flat.items()
        for chunk, local_parts in _overlapping(metadata_of[name].chunks, _local_parts(name, target))
        if delta.has(_item_name(name, chunk))
    ]
    with ThreadPoolExecutor(
        checkpoint_reader.READ_THREADS, thread_name_prefix="headway-read"
    ) as pool:
        ahead: deque[Future[tuple[Tensor, Tensor]]] = deque()
        submitted = (
            pool.submit(delta.rows, _item_name(name, chunk), chunk) for name, chunk, _ in reads
        )
        ahead.extend(itertools.islice(submitted, checkpoint_reader.READ_THREADS))
        for name, chunk, local_parts in reads:
            ids, content = ahead.popleft().result()
            ahead.extend(itertools.islice(submitted, 1))
            rows = content.view(metadata_of[name].properties.dtype).view(len(ids), *chunk.sizes[1:])
            for local, part in local_parts:
                _write_rows(local, part, ids, rows, chunk)


class _Delta:
    """The items of a delta, and its files once they are opened."""

    def __init__(self, path: str, manifest: Manifest) -> None:
        self._path = path
        self._items = {item.name: (f.name, item) for f in manifest.files for item in f.items}
        self._files: dict[str, checkpoint_reader.RangeReader] = {}

    def has(self, item: str) -> bool:
        """Whether it stores anything of a shard."""
        return item in self._items or item + IDS_SUFFIX in self._items

    def rows(self, item: str, chunk: ChunkStorageMetadata) -> tuple[Tensor, Tensor]:
        """The rows of the table that it stores of a shard, and their bytes."""
        first = chunk.offsets[0]
        if item in self._items:
            return torch.arange(first, first + chunk.sizes[0]), self._read(item)
        ids = self._read(item + IDS_SUFFIX).view(torch.int64)
        return ids + first, self._read(item + ROWS_SUFFIX)

    def _read(self, name: str) -> Tensor:
        file, item = self._items[name]
        if file not in self._files:
            self._files[file] = checkpoint_reader.open_file(self._path, file)
        data = self._files[file].bytes(item.data, item.size)
        if crc32_of(data) != item.crc32:
            reason = f"{name} was modified"
            raise checkpoint_reader.damaged_error(
                self._path, reason, code="checksum-mismatch", item=name
            )
        content = _decompressed(self._path, data, item)
        return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0).byte()


def _decompressed(path: str, data: memoryview, item: Item) -> memoryview:
    try:
        return checkpoint_reader.item_content(data, item)
    except UnreadableData as error:
        reason = f"{item.name}: {error}"
        raise checkpoint_reader.damaged_error(
            path, reason, code=error.code, item=item.name
        ) from None


def _local_parts(name: str, target: Any) -> list[TensorPart]:
    """The memory of this rank that holds parts of a tensor."""
    return [
        (find_tensor_shard(target, MetadataIndex(name, chunk.offsets)).detach(), chunk)
        for chunk in _create_chunk_list(target)
    ]


def _overlapping(
    chunks: Iterable[ChunkStorageMetadata], local_parts: Sequence[TensorPart]
) -> Iterator[tuple[ChunkStorageMetadata, list[TensorPart]]]:
    """The chunks that overlap memory of this rank, with that memory."""
    for chunk in chunks:
        if overlapping := [part for part in local_parts if _overlap(chunk, part[1])]:
            yield chunk, overlapping


def _item_name(name: str, chunk: ChunkStorageMetadata) -> str:
    return dcp.item_name(MetadataIndex(name, chunk.offsets))


def _overlap(first: ChunkStorageMetadata, second: ChunkStorageMetadata) -> bool:
    sides = zip(first.offsets, first.sizes, second.offsets, second.sizes, strict=True)
    return all(max(a, b) < min(a + m, b + n) for a, m, b, n in sides)


def _write_rows(
    local: Tensor,
    part: ChunkStorageMetadata,
    ids: Tensor,
    rows: Tensor,
    chunk: ChunkStorageMetadata,
) -> None:
    """Write the rows that belong to that part; they are as wide as their chunk."""
    first = part.offsets[0]
    inside = (ids >= first) & (ids < first + part.sizes[0])
    ids, rows = (ids, rows) if bool(inside.all()) else (ids[inside], rows[inside])
    for dim in range(1, rows.dim()):
        a, b = chunk.offsets[dim], part.offsets[dim]
        begin, end = max(a, b), min(a + chunk.sizes[dim], b + part.sizes[dim])
        rows = rows.narrow(dim, begin - a, end - begin)
        local = local.narrow(dim, begin - b, end - begin)
    local.index_copy_(0, (ids - first).to(local.device), rows.to(local.device, local.dtype))
