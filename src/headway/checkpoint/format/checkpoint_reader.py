"""Read checkpoints from disk or a URL through DCP, without intermediate copies. Imports torch."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
)
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.futures import Future

from headway.checkpoint.format import unpickling
from headway.checkpoint.format.dcp import tensor_bytes
from headway.checkpoint.store import layout as manifests
from headway.checkpoint.store.layout import Item
from headway.errors import CheckpointDamaged, HeadwayError
from headway.storage import codecs, disk
from headway.storage.codecs import UnreadableData, crc32_of, decompress_into
from headway.storage.place import FsspecPlace

READ_THREADS = 4  # parallel reads
READ_BYTES = 1 << 20  # bytes per read


class CheckpointReader(FileSystemReader):
    """Reads checkpoints of a store without intermediate copies, and any other as torch does.

    `check`: verify the checksum of everything that is read. `mapped`: read through a memory map,
    which is fastest; some network file systems are faster with reads. `trusted`: whether objects
    may run code, see `unpickling`; None allows it only if nobody but this user can have written the
    checkpoint.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        check: bool = False,
        mapped: bool = True,
        threads: int = READ_THREADS,
        trusted: bool | None = None,
    ) -> None:
        super().__init__(path)
        self._trusted = trusted
        self._remote = FsspecPlace(str(path)) if "://" in str(path) else None
        self._check, self._mapped, self._threads = check, mapped, threads
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the checkpoint, read once."""
        if self._metadata is None:
            if self._remote is None:
                content = disk.read(os.path.join(self.path, manifests.METADATA))
            else:
                content = self._remote.read(manifests.METADATA)
            try:
                metadata = unpickling.load_metadata(content, trusted=self.trusted)
            except (HeadwayError, OSError):
                raise
            except Exception as error:  # a damaged pickle may raise any exception
                reason = f"its {manifests.METADATA} cannot be read: {error}"
                raise damaged_error(self.path, reason, code="metadata-not-readable") from None
            if metadata.storage_meta is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            self._metadata = metadata
        return self._metadata

    @property
    def trusted(self) -> bool:
        """Whether objects that are read may run code."""
        if self._trusted is None:
            self._trusted = self._remote is None and disk.only_user_can_write(self.path)
        return self._trusted

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Switch to another checkpoint, if one is given."""
        super().reset(checkpoint_id)
        if checkpoint_id:
            url = str(checkpoint_id)
            self._remote = FsspecPlace(url) if "://" in url else None
        self._metadata = None

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the metadata of the checkpoint."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._metadata = metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the targets in parallel."""
        items = self._stored_items()
        if items is None:
            return super().read_data(plan, planner)
        requests_by_item: dict[tuple[str, int], list[ReadItem]] = {}
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            if (info.relative_path, info.offset) not in items:
                name = item.storage_index.fqn
                raise damaged_error(
                    self.path, f"its manifest does not list {name}", code="item-not-in-manifest"
                )
            requests_by_item.setdefault((info.relative_path, info.offset), []).append(item)
        targets = {
            id(item): planner.resolve_tensor(item).detach()
            for item in plan.items
            if item.type != LoadItemType.BYTE_IO
        }
        files = {name: self._open(name) for name, _ in requests_by_item}

        def read(key: tuple[str, int]) -> memoryview | bytes:
            return self._read(files[key[0]], items[key], requests_by_item[key], targets)

        with ThreadPoolExecutor(self._threads, thread_name_prefix="headway-read") as pool:
            contents = dict(zip(requests_by_item, pool.map(read, requests_by_item), strict=True))
        for key, requests in requests_by_item.items():
            for item in requests:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(contents[key]))
                else:
                    planner.commit_tensor(item, targets[id(item)])
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _stored_items(self) -> dict[tuple[str, int], Item] | None:
        """Where the raw bytes of each item are; None if it is not a checkpoint of a store."""
        try:
            if self._remote is not None:
                content = self._remote.read(manifests.MANIFEST)
            else:
                content = disk.read(os.path.join(self.path, manifests.MANIFEST))
            manifest = manifests.manifest_from_bytes(content)
        except FileNotFoundError:
            return None
        except UnreadableData as error:
            reason = f"its manifest cannot be used: {error}"
            raise damaged_error(self.path, reason, code=error.code) from None
        return {(file.name, item.offset): item for file in manifest.files for item in file.items}

    def _open(self, name: str) -> RangeReader:
        try:
            if self._remote is not None:
                return _RemoteFile(self._remote, name)
            return _LocalFile(os.path.join(self.path, name), self._mapped)
        except FileNotFoundError:
            raise damaged_error(self.path, f"{name} is missing", code="file-missing") from None

    def _read(
        self,
        source: RangeReader,
        item: Item,
        requests: Sequence[ReadItem],
        targets: dict[int, torch.Tensor],
    ) -> memoryview | bytes:
        """Read the targets of one item, or return its bytes."""
        buffer = self._target_buffer(item, requests, targets)
        if buffer is not None and not item.unpacked:
            self._verify(source, item, *source.fill(buffer, item.data, check=self._check))
            return b""
        data = source.bytes(item.data, item.size)
        self._verify(source, item, len(data), crc32_of(data) if self._check else 0)
        try:
            if buffer is not None and item.unpacked:
                codecs.decompress_into(data, item.unpacked[0], buffer)
                return b""
            data = item_content(data, item)
        except UnreadableData as error:
            reason = f"{item.name} in {source.name}: {error}"
            raise damaged_error(self.path, reason, code=error.code, item=item.name) from None
        if requests[0].type == LoadItemType.BYTE_IO:
            return data
        tensor = self._tensor(requests[0].storage_index, data)
        for request in requests:
            target = targets[id(request)]
            part = narrow_tensor_by_index(tensor, request.storage_offsets, request.lengths)
            if target.size() != part.size():
                raise ValueError(
                    f"{request.storage_index.fqn} has the shape {tuple(part.size())} in the "
                    f"checkpoint and {tuple(target.size())} in the model"
                )
            target.copy_(part)
        return b""

    def _verify(self, source: RangeReader, item: Item, size: int, crc32: int) -> None:
        if size != item.size:
            reason = f"{source.name} ends before {item.name}"
            raise damaged_error(self.path, reason, code="truncated", item=item.name)
        if self._check and crc32 != item.crc32:
            reason = f"{item.name} in {source.name} was modified"
            raise damaged_error(self.path, reason, code="checksum-mismatch", item=item.name)

    def _target_buffer(
        self, item: Item, requests: Sequence[ReadItem], targets: dict[int, torch.Tensor]
    ) -> memoryview | None:
        """The memory of the target, if the raw bytes of the whole item can be read into it."""
        target = targets.get(id(requests[0]))
        if target is None or len(requests) > 1 or self._metadata is None:
            return None
        entry = self._metadata.state_dict_metadata[requests[0].storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        whole = target.size() == requests[0].lengths and target.nbytes == item.raw_size
        same_type = target.device.type == "cpu" and target.dtype == entry.properties.dtype
        plain = target.is_contiguous() and not target.is_conj() and not target.is_neg()
        if not whole or not same_type or not plain:
            return None
        increment_version(target)  # the write bypasses torch's version counter
        return tensor_bytes(target)

    def _tensor(self, index: MetadataIndex, data: memoryview) -> torch.Tensor:
        assert self._metadata is not None
        entry = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        chunks = entry.chunks
        hint = index.index
        if hint is None or hint >= len(chunks) or chunks[hint].offsets != index.offset:
            hint = next(at for at, chunk in enumerate(chunks) if chunk.offsets == index.offset)
        shape, dtype = chunks[hint].sizes, entry.properties.dtype
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)


def damaged_error(
    path: str | os.PathLike[str], reason: str, *, code: str, item: str = ""
) -> CheckpointDamaged:
    """The error of a checkpoint that cannot be loaded; `reason` is a clause."""
    text = f"the checkpoint {path} cannot be loaded: {reason}"
    return CheckpointDamaged(text, code=code, why=reason, item=item)


def item_content(data: memoryview, item: Item) -> memoryview:
    """The raw bytes of an item, from the bytes in the file."""
    if item.unpacked is None:
        return data
    at, size = item.unpacked
    buffer = memoryview(bytearray(size))
    decompress_into(data, at, buffer)
    return buffer


def open_file(path: str, name: str) -> RangeReader:
    if "://" in path:
        return _RemoteFile(FsspecPlace(path), name)
    return _LocalFile(os.path.join(path, name), mapped=True)


class RangeReader(Protocol):
    """A file that is read in ranges."""

    name: str

    def bytes(self, at: int, size: int) -> memoryview:
        """Read that many bytes, or fewer at the end of the file."""

    def fill(self, buffer: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """Read into memory; return the number of bytes, and their checksum if `check`."""


class _RemoteFile:
    """A file in an object store."""

    def __init__(self, where: FsspecPlace, name: str) -> None:
        self.name = name
        self._where = where

    def bytes(self, at: int, size: int) -> memoryview:
        return memoryview(self._where.read_range(self.name, at, size) if size else b"")

    def fill(self, buffer: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """Read into other memory first."""
        data = self.bytes(at, len(buffer))
        buffer[: len(data)] = data
        return len(data), crc32_of(data) if check else 0


class _LocalFile:
    """A file in a local folder."""

    def __init__(self, path: str, mapped: bool) -> None:
        self.name = os.path.basename(path)
        self._path = path
        self._view = memoryview(b"")
        self._mapped = mapped
        if mapped and os.path.getsize(path):
            with open(path, "rb") as file:
                # The private copy is never written, but torch needs writable memory.
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._view = memoryview(mapping)

    def bytes(self, at: int, size: int) -> memoryview:
        """Read that many bytes, or fewer at the end of the file."""
        if self._mapped:
            return self._view[at : at + size]
        buffer = memoryview(bytearray(size))
        done, _ = self.fill(buffer, at, check=False)
        return buffer[:done]

    def fill(self, buffer: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """Read in blocks, each summed while it is in the cache of the core."""
        done = crc32 = 0
        with open(self._path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), at, len(buffer), os.POSIX_FADV_SEQUENTIAL)
            while done < len(buffer):
                with buffer[done : done + READ_BYTES] as block:
                    count = os.preadv(file.fileno(), [block], at + done)
                    if not count:
                        break
                    if check:
                        crc32 = crc32_of(block[:count], crc32)
                done += count
        return done, crc32
