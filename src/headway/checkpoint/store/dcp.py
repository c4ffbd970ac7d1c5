"""Between a store and torch: DCP's own planners, metadata and loading. This file imports torch."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.autograd.graph import increment_version
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    FileSystemReader,
    _StorageInfo,
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
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.futures import Future

from headway.checkpoint.store import disk, packed, trust
from headway.checkpoint.store import manifest as manifests
from headway.checkpoint.store.manifest import (
    IDS_SUFFIX,
    ROWS_SUFFIX,
    Item,
    RankPart,
    UnreadableData,
    delta_tables,
)
from headway.checkpoint.store.part import BytesItem, TensorItem
from headway.checkpoint.store.place import FsspecPlace
from headway.checkpoint.store.sums import summed
from headway.errors import CheckpointDamaged, HeadwayError, SaveFailed, UsageError

READ_THREADS = 4  # that read at once
READ_BYTES = 1 << 20  # bytes that each reads at a time
# The end of a tensor's name that could be taken for what names of items have there.
ITEM_LIKE = re.compile(rf"(\[[\d, ]*\]|{IDS_SUFFIX}|{ROWS_SUFFIX})\Z")


# Saving


def tensor_pickle(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """The `data.pkl` of a tensor in row-major order, as `torch.save` makes it, without its data.

    The tensor refers to its data as to an object elsewhere, which this stands in for.
    """
    count = 1
    stride: list[int] = []
    for size in reversed(shape):
        stride.insert(0, count)
        count *= max(size, 1)
    elements = 0 if 0 in shape else count
    here: tuple[Any, ...] = (tuple(shape), tuple(stride), False, OrderedDict())
    storage: tuple[Any, ...]
    rebuild: Any
    if dtype in torch.storage._new_dtypes():
        rebuild, here = torch._utils._rebuild_tensor_v3, (*here, dtype)
        storage = (torch.storage.UntypedStorage, "0", "cpu", elements * dtype.itemsize)
    else:
        rebuild = torch._utils._rebuild_tensor_v2
        known = torch.storage._dtype_to_storage_type_map()
        if dtype not in known or str(dtype).startswith("torch.q"):
            raise UsageError(
                f"tensors of type {dtype} cannot be saved by their bytes",
                code="dtype-not-supported",
                dtype=str(dtype),
            )
        storage = (getattr(torch, known[dtype]), "0", "cpu", elements)
    stand_in = _StandIn()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
            return ("storage", *storage) if obj is stand_in else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(_Rebuilt(rebuild, (stand_in, 0, *here)))
    return out.getvalue()


class _StandIn:
    pass


class _Rebuilt:
    def __init__(self, rebuild: Any, args: tuple[Any, ...]) -> None:
        self._how = rebuild, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._how


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU in row-major order; the tensor lives as long as they do."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("only a contiguous tensor on the CPU has its bytes in order")
    if tensor.numel() == 0:
        return memoryview(b"")
    size = tensor.numel() * tensor.element_size()
    content = (ctypes.c_char * size).from_address(tensor.data_ptr())
    content.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(content).cast("B")


def items(plan: SavePlan, planner: SavePlanner) -> list[TensorItem | BytesItem]:
    """What a rank has to write, in the order of its plan; tensors are copied only if they must."""
    found: list[TensorItem | BytesItem] = []
    for one in plan.items:
        name = item_name(one.index)
        data: Any = planner.resolve_data(one)
        if one.type == WriteItemType.BYTE_IO:
            found.append(BytesItem(name, data.getvalue()))
            continue
        tensor = data.detach().resolve_conj().resolve_neg().cpu().contiguous()
        found.append(
            TensorItem(name, tensor_pickle(tensor.dtype, tensor.shape), tensor_bytes(tensor))
        )
    return found


def item_name(index: MetadataIndex) -> str:
    """What an item is called where something is said of it: no two of a checkpoint are alike."""
    if index.offset is None or not any(index.offset):
        return f"{index.fqn}[]" if ITEM_LIKE.search(index.fqn) else index.fqn
    return f"{index.fqn}[{', '.join(map(str, index.offset))}]"


def build_metadata(
    planned: Metadata | bytes, parts: Sequence[RankPart], save_id: str = ""
) -> bytes:
    """The content of `.metadata`: what the global plan says, and where each item of it lies.

    Items are known by their `item_name`. It is all there once they are laid out: the parts need
    not be written yet. Of a delta it is the tensors that are in it as a whole.
    """
    whole = trust.load_metadata(planned) if isinstance(planned, bytes) else planned
    missing = {item_name(index): index for index in item_indices(whole)}
    by_rows = set()  # tensors, as soon as one of their shards is
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
            how = None if item.unpacked is None else [packed.ZSTD_DESCRIPTOR]
            storage[index] = _StorageInfo(part.file.name, item.offset, item.length, how)
    if missing:
        absent = next(iter(missing))
        raise SaveFailed(
            f"no rank has saved {absent}, which is planned", code="item-missing", item=absent
        )
    kept = {name: told for name, told in whole.state_dict_metadata.items() if name not in by_rows}
    whole = replace(whole, state_dict_metadata=kept)
    where = StorageMeta(save_id=save_id)
    version = CURRENT_DCP_VERSION
    return pickle.dumps(replace(whole, storage_data=storage, storage_meta=where, version=version))


def _pop_planned(missing: dict[str, MetadataIndex], name: str, part: RankPart) -> MetadataIndex:
    if name not in missing:
        raise SaveFailed(
            f"rank {part.rank} has saved {name}, which is not planned",
            code="item-not-planned",
            rank=part.rank,
            item=name,
        )
    return missing.pop(name)


def item_indices(planned: Metadata) -> Iterator[MetadataIndex]:
    """Of all items of a checkpoint."""
    for name, told in planned.state_dict_metadata.items():
        if not isinstance(told, TensorStorageMetadata):
            yield MetadataIndex(name)
            continue
        for at, chunk in enumerate(told.chunks):
            yield MetadataIndex(name, chunk.offsets, at)


# Loading


class CheckpointReader(FileSystemReader):
    """Reads checkpoints of a store without a copy in between; any other as torch does.

    `check`: compare the checksum of everything that is read. `mapped`: through the page cache, as
    fast as it gets; some network file systems would rather have it read. `trusted`: whether it may
    run code, see `trust`; None: if this user alone can have written it.
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
        """What the checkpoint says of its tensors; read once."""
        if self._metadata is None:
            if self._remote is None:
                content = disk.read(os.path.join(self.path, manifests.METADATA))
            else:
                content = self._remote.read(manifests.METADATA)
            try:
                found = trust.load_metadata(content, trusted=self.trusted)
            except (HeadwayError, OSError):
                raise
            except Exception as error:  # a damaged pickle may raise anything
                why = f"its {manifests.METADATA} cannot be read: {error}"
                raise damaged_error(self.path, why, code="metadata-not-readable") from None
            if found.storage_meta is None:
                found.storage_meta = StorageMeta()
            found.storage_meta.load_id = self.load_id
            self._metadata = found
        return self._metadata

    @property
    def trusted(self) -> bool:
        """Whether what is read may run code."""
        if self._trusted is None:
            self._trusted = self._remote is None and trust.only_user_can_write(self.path)
        return self._trusted

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Another checkpoint, if one is named."""
        super().reset(checkpoint_id)
        if checkpoint_id:
            url = str(checkpoint_id)
            self._remote = FsspecPlace(url) if "://" in url else None
        self._metadata = None

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Keep what the checkpoint says of its tensors."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._metadata = metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the targets, several at once."""
        known = self._known()
        if known is None:
            return super().read_data(plan, planner)
        wanted: dict[tuple[str, int], list[ReadItem]] = {}
        for one in plan.items:
            info = self.storage_data[one.storage_index]
            if (info.relative_path, info.offset) not in known:
                name = one.storage_index.fqn
                raise damaged_error(
                    self.path, f"its manifest does not know {name}", code="item-not-in-manifest"
                )
            wanted.setdefault((info.relative_path, info.offset), []).append(one)
        targets = {
            id(one): planner.resolve_tensor(one).detach()
            for one in plan.items
            if one.type != LoadItemType.BYTE_IO
        }
        files = {name: self._open(name) for name, _ in wanted}

        def read(key: tuple[str, int]) -> memoryview | bytes:
            return self._read(files[key[0]], known[key], wanted[key], targets)

        with ThreadPoolExecutor(self._threads, thread_name_prefix="headway-read") as pool:
            contents = dict(zip(wanted, pool.map(read, wanted), strict=True))
        for key, requests in wanted.items():
            for one in requests:
                if one.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(one, io.BytesIO(contents[key]))
                else:
                    planner.commit_tensor(one, targets[id(one)])
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _known(self) -> dict[tuple[str, int], Item] | None:
        """Where the raw bytes of each item lie; None if this is no checkpoint of a store."""
        try:
            if self._remote is not None:
                content = self._remote.read(manifests.MANIFEST)
            else:
                content = disk.read(os.path.join(self.path, manifests.MANIFEST))
            manifest = manifests.manifest_from_bytes(content)
        except FileNotFoundError:
            return None
        except UnreadableData as error:
            why = f"its manifest cannot be used: {error}"
            raise damaged_error(self.path, why, code=error.code) from None
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
        """Fill the targets of one item, or hand out its bytes."""
        room = self._room(item, requests, targets)
        if room is not None and not item.unpacked:
            self._verify(source, item, *source.fill(room, item.data, check=self._check))
            return b""
        data = source.bytes(item.data, item.size)
        self._verify(source, item, len(data), summed(data) if self._check else 0)
        try:
            if room is not None and item.unpacked:
                packed.decompress_into(data, item.unpacked[0], room)
                return b""
            data = packed.item_content(data, item)
        except UnreadableData as error:
            why = f"{item.name} in {source.name}: {error}"
            raise damaged_error(self.path, why, code=error.code, item=item.name) from None
        if requests[0].type == LoadItemType.BYTE_IO:
            return data
        tensor = self._tensor(requests[0].storage_index, data)
        for one in requests:
            target = targets[id(one)]
            found = narrow_tensor_by_index(tensor, one.storage_offsets, one.lengths)
            if target.size() != found.size():
                raise ValueError(
                    f"{one.storage_index.fqn} has the shape {tuple(found.size())} in the "
                    f"checkpoint and {tuple(target.size())} in the model"
                )
            target.copy_(found)
        return b""

    def _verify(self, source: RangeReader, item: Item, size: int, crc32: int) -> None:
        if size != item.size:
            why = f"{source.name} ends before {item.name}"
            raise damaged_error(self.path, why, code="truncated", item=item.name)
        if self._check and crc32 != item.crc32:
            why = f"{item.name} in {source.name} was changed"
            raise damaged_error(self.path, why, code="checksum-mismatch", item=item.name)

    def _room(
        self, item: Item, requests: Sequence[ReadItem], targets: dict[int, torch.Tensor]
    ) -> memoryview | None:
        """The memory of the target, if all of the item belongs there as it is."""
        target = targets.get(id(requests[0]))
        if target is None or len(requests) > 1 or self._metadata is None:
            return None
        told = self._metadata.state_dict_metadata[requests[0].storage_index.fqn]
        assert isinstance(told, TensorStorageMetadata)
        fits = target.size() == requests[0].lengths and target.nbytes == item.raw_size
        same = target.device.type == "cpu" and target.dtype == told.properties.dtype
        plain = target.is_contiguous() and not target.is_conj() and not target.is_neg()
        if not fits or not same or not plain:
            return None
        increment_version(target)  # who watches for changes would not see this one
        return tensor_bytes(target)

    def _tensor(self, index: MetadataIndex, data: memoryview) -> torch.Tensor:
        assert self._metadata is not None
        told = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(told, TensorStorageMetadata)
        chunks = told.chunks
        hint = index.index
        if hint is None or hint >= len(chunks) or chunks[hint].offsets != index.offset:
            hint = next(at for at, one in enumerate(chunks) if one.offsets == index.offset)
        shape, dtype = chunks[hint].sizes, told.properties.dtype
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)


def damaged_error(
    path: str | os.PathLike[str], why: str, *, code: str, item: str = ""
) -> CheckpointDamaged:
    """The error of a checkpoint that cannot be loaded; `why` is a clause."""
    sentence = f"the checkpoint {path} cannot be loaded: {why}"
    return CheckpointDamaged(sentence, code=code, why=why, item=item)


def open_file(path: str, name: str) -> RangeReader:
    """A file of a checkpoint."""
    if "://" in path:
        return _RemoteFile(FsspecPlace(path), name)
    return _LocalFile(os.path.join(path, name), mapped=True)


class RangeReader(Protocol):
    """A file that is read in places."""

    name: str

    def bytes(self, at: int, size: int) -> memoryview:
        """So many bytes from there, or as many as there are."""

    def fill(self, room: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """The same into memory that is there; how many there were, and their checksum if asked."""


class _RemoteFile:
    """In an object store."""

    def __init__(self, where: FsspecPlace, name: str) -> None:
        self.name = name
        self._where = where

    def bytes(self, at: int, size: int) -> memoryview:
        """Each time anew."""
        return memoryview(self._where.stretch(self.name, at, size) if size else b"")

    def fill(self, room: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """By way of other memory."""
        data = self.bytes(at, len(room))
        room[: len(data)] = data
        return len(data), summed(data) if check else 0


class _LocalFile:
    """On a disk."""

    def __init__(self, path: str, mapped: bool) -> None:
        self.name = os.path.basename(path)
        self._path = path
        self._view = memoryview(b"")
        self._mapped = mapped
        if mapped and os.path.getsize(path):
            with open(path, "rb") as file:
                # A private copy is never written, but torch wants memory that could be.
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._view = memoryview(whole)

    def bytes(self, at: int, size: int) -> memoryview:
        """So many bytes from there, or as many as there are."""
        if self._mapped:
            return self._view[at : at + size]
        room = memoryview(bytearray(size))
        done, _ = self.fill(room, at, check=False)
        return room[:done]

    def fill(self, room: memoryview, at: int, *, check: bool) -> tuple[int, int]:
        """Piece by piece: each is summed while the cache of a core still has it."""
        done = crc32 = 0
        with open(self._path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), at, len(room), os.POSIX_FADV_SEQUENTIAL)
            while done < len(room):
                with room[done : done + READ_BYTES] as piece:
                    got = os.preadv(file.fileno(), [piece], at + done)
                    if not got:
                        break
                    if check:
                        crc32 = summed(piece[:got], crc32)
                done += got
        return done, crc32
