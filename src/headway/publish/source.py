"""Read the tensors of an anchor by name into existing memory, from any of its three kinds.

Only requested tensors are read, directly from disk into their destination.
"""

from __future__ import annotations

import ctypes
import io
import math
import mmap
import os
import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, Protocol

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from headway.checkpoint.format import checkpoint_reader, dcp
from headway.checkpoint.format.delta import apply_rows
from headway.checkpoint.store.layout import Item
from headway.checkpoint.store.store import Checkpoint
from headway.errors import CheckpointDamaged, CheckpointUntrusted, HeadwayError
from headway.publish.anchor import Anchor
from headway.publish.failures import raise_if_transient
from headway.storage import codecs, disk
from headway.storage.codecs import UnreadableData, crc32_of

# Bytes before the name of an entry; the lengths of name and extra are its last.
ZIP_HEADER_SIZE = 30
READ_SIZE = 64 << 20  # bytes per read
MADV_PAGEOUT = 21  # argument of madvise


@dataclass(frozen=True)
class StoredTensor:
    """The bytes of a tensor's storage, and the layout of the tensor in it."""

    at: int  # offset in the file
    size: int
    crc32: int
    tensor: torch.Tensor  # without memory

    @property
    def is_direct(self) -> bool:
        """Whether the bytes are exactly those of the contiguous tensor."""
        whole = self.tensor.numel() * self.tensor.element_size() == self.size
        return whole and self.tensor.is_contiguous() and self.tensor.storage_offset() == 0


class _FileSlice(io.RawIOBase):
    """A part of a file as a file object."""

    def __init__(self, file: BinaryIO, at: int, length: int) -> None:
        self._file, self._at, self._length = file, at, length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._length)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer)[: max(0, self._length - self._position)]
        self._file.seek(self._at + self._position)
        count = self._file.readinto(target)  # type: ignore[attr-defined]
        self._position += count
        return int(count)


def read_record(file: BinaryIO, at: int, length: int) -> StoredTensor | None:
    """The single tensor in a part of a file; None for other content that torch may load."""
    view = _FileSlice(file, at, length)
    if view.read(4) != b"PK\3\4":
        return None
    with zipfile.ZipFile(view) as entries:
        data = [entry for entry in entries.infolist() if "/data/" in entry.filename]
        if len(data) != 1 or data[0].compress_type != zipfile.ZIP_STORED:
            return None
        for entry in entries.infolist():
            if entry is not data[0] and entry.CRC:
                entries.read(entry)  # compares the checksum
    view.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = torch.load(view, map_location="meta", weights_only=True)  # type: ignore[arg-type]
    view.seek(data[0].header_offset + ZIP_HEADER_SIZE - 4)
    lengths = struct.unpack("<HH", view.read(4))
    begin = at + data[0].header_offset + ZIP_HEADER_SIZE + sum(lengths)
    return StoredTensor(begin, data[0].file_size, data[0].CRC, tensor)


def first_damaged_entry(path: str) -> str:
    """The first zip entry with a wrong checksum; empty if there is none."""
    with zipfile.ZipFile(path) as entries:
        for entry in entries.infolist():
            if entry.CRC:
                try:
                    with entries.open(entry) as content:
                        while content.read(1 << 20):
                            pass
                except zipfile.BadZipFile:
                    return entry.filename
    return ""


class TensorSource(Protocol):
    """Tensors of one anchor."""

    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fill a tensor of the same shape, converting the type if it differs."""


def open_source(anchor: Anchor) -> TensorSource:
    """Open an anchor of any kind; a downloaded anchor keeps its original path.

    Tensors are read without running pickled code. Only data that this user alone can write is
    trusted.
    """
    if anchor.kind == "store":
        return _StoreSource(anchor.chain, trusted=False if "://" in anchor.path else None)
    return _DcpSource(anchor.path) if anchor.kind == "dcp" else _TorchFileSource(anchor.path)


def is_trusted(anchor: Anchor) -> bool:
    """Whether only this user can have written an anchor."""
    return anchor.kind == "store" and all(
        disk.only_user_can_write(checkpoint.path) for checkpoint in anchor.chain
    )


def read_tensor(source: TensorSource, name: str) -> torch.Tensor:
    """Read a tensor into new memory."""
    shape, dtype = source.shapes[name]
    tensor = torch.empty(shape, dtype=dtype)
    source.read(name, tensor)
    return tensor


Tensors = dict[str, TensorStorageMetadata]


def _metadata(path: str, trusted: bool | None) -> tuple[Tensors, Mapping[MetadataIndex, Any]]:
    """Metadata of the tensors of a checkpoint, and the location of each part."""
    try:
        metadata = checkpoint_reader.CheckpointReader(path, trusted=trusted).read_metadata()
        tensors = {
            name: item
            for name, item in metadata.state_dict_metadata.items()
            if isinstance(item, TensorStorageMetadata)
        }
        stored = dict(metadata.storage_data or {})
        _check(tensors)
    except HeadwayError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        _raise_if_transient(path, error)
        reason = f"its .metadata cannot be read: {type(error).__name__}"
        raise CheckpointDamaged(
            f"the checkpoint {path} cannot be loaded: {reason}", code="metadata-not-readable"
        ) from None
    return tensors, stored


def _check(tensors: Tensors) -> None:
    """Raise ValueError for invalid metadata, or parts outside of a tensor."""
    for name, tensor in tensors.items():
        size = tuple(tensor.size)
        valid = isinstance(name, str) and isinstance(tensor.properties.dtype, torch.dtype)
        for part in tensor.chunks:
            ranges = tuple(zip(part.offsets, part.sizes, size, strict=True))
            valid &= all(
                begin >= 0 and count >= 0 and begin + count <= total
                for begin, count, total in ranges
            )
        if not valid:
            raise ValueError(name)


def _raise_if_transient(path: str, error: BaseException) -> None:
    raise_if_transient(f"the checkpoint {path} cannot be read now: {_last_line(error)}", error)


class _StoreSource:
    """A checkpoint of a store: a full one, and the deltas after it."""

    def __init__(self, chain: Iterable[Checkpoint], *, trusted: bool | None) -> None:
        self._chain = tuple(chain)
        self._tensors = {
            checkpoint.path: _metadata(checkpoint.path, trusted)[0] for checkpoint in self._chain
        }
        self._items = {
            checkpoint.path: {
                item.name: (file.name, item)
                for file in checkpoint.manifest.files
                for item in file.items
            }
            for checkpoint in self._chain
        }
        self.shapes = {
            name: (tuple(tensor.size), tensor.properties.dtype)
            for tensors in self._tensors.values()
            for name, tensor in tensors.items()
        }

    def read(self, name: str, into: torch.Tensor) -> None:
        """Read from the last checkpoint with the whole tensor, then apply later deltas."""
        indexes = [
            index
            for index, checkpoint in enumerate(self._chain)
            if name in self._tensors[checkpoint.path]
        ]
        base, deltas = self._chain[indexes[-1]], self._chain[indexes[-1] + 1 :]
        dtype = self.shapes[name][1]
        # Deltas contain bytes of rows: apply them in the type of the table.
        target = torch.empty(into.shape, dtype=dtype) if deltas and into.dtype != dtype else into
        self._read(base.path, name, target)
        for delta in deltas:
            apply_rows(delta.path, delta.manifest, {name: target}, self._tensors[base.path])
        if target is not into:
            into.copy_(target)

    def _read(self, path: str, name: str, into: torch.Tensor) -> None:
        tensor = self._tensors[path][name]
        items = self._items[path]
        for chunk in tensor.chunks:
            file, item = items[dcp.item_name(MetadataIndex(name, chunk.offsets))]
            part = narrow_tensor_by_index(into, chunk.offsets, chunk.sizes)
            straight = part.is_contiguous() and part.dtype == tensor.properties.dtype
            target = part if straight else torch.empty(chunk.sizes, dtype=tensor.properties.dtype)
            _fill(Path(path, file), item, target)
            if not straight:
                part.copy_(target)


def _fill(path: Path, item: Item, target: torch.Tensor, *, verify: bool = True) -> None:
    """Read the bytes of one item and verify its checksum, if there is one."""
    if item.unpacked is not None:
        _unpack(path, item, item.unpacked[0], target)
        return
    view, done, crc32 = dcp.tensor_bytes(target), 0, 0
    try:
        with path.open("rb", buffering=0) as file:
            while done < len(view) and (
                count := os.preadv(file.fileno(), [view[done : done + READ_SIZE]], item.data + done)
            ):
                crc32 = crc32_of(view[done : done + count], crc32)
                done += count
    except FileNotFoundError:
        raise _damaged(path, "it is missing", code="file-missing") from None
    if done != item.size:
        raise _damaged(path, f"it ends before {item.name}", code="truncated")
    if verify and crc32 != item.crc32:
        raise _damaged(path, f"{item.name} was changed", code="checksum-mismatch")


def _unpack(path: Path, item: Item, at: int, target: torch.Tensor) -> None:
    """Read a compressed item; verifies the checksum before decompressing."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as whole,
            whole[item.data : item.data + item.size] as data,
        ):
            if len(data) != item.size:
                raise _damaged(path, f"it ends before {item.name}", code="truncated")
            if crc32_of(data) != item.crc32:
                raise _damaged(path, f"{item.name} was changed", code="checksum-mismatch")
            codecs.decompress_into(data, at, dcp.tensor_bytes(target))
    except FileNotFoundError:
        raise _damaged(path, "it is missing", code="file-missing") from None
    except UnreadableData as error:
        raise _damaged(path, f"{item.name}: {error}", code=error.code) from None


def _damaged(path: Path, reason: str, *, code: str) -> CheckpointDamaged:
    text = f"{path.name} of the checkpoint {path.parent} cannot be used: {reason}"
    return CheckpointDamaged(text, code=code)


class _DcpSource:
    """A checkpoint written by DCP; read one tensor at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tensors, stored = _metadata(path, None)
        for info in stored.values():
            if not _is_inside(info.relative_path):
                raise CheckpointDamaged(
                    f"the checkpoint {path} cannot be loaded: its .metadata names the file "
                    f"{info.relative_path!r}, which is outside of its folder",
                    code="file-outside-folder",
                )
        self._stored = {
            (index.fqn, tuple(index.offset or ())): info for index, info in stored.items()
        }
        self.shapes = {
            name: (tuple(tensor.size), tensor.properties.dtype)
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, into: torch.Tensor) -> None:
        """Read directly from the files and verify checksums; unusual formats with torch."""
        chunks = self._tensors[name].chunks
        if sum(math.prod(chunk.sizes) for chunk in chunks) != into.numel():
            reason = f"its .metadata does not cover all of {name}"
            raise CheckpointDamaged(
                f"the checkpoint {self._path} cannot be loaded: {reason}",
                code="metadata-incomplete",
            )
        for chunk in chunks:
            part = narrow_tensor_by_index(into, chunk.offsets, chunk.sizes)
            if not self._read_direct(name, tuple(chunk.offsets), part):
                self._read_with_torch(name, into)
                return

    def _read_direct(self, name: str, offsets: tuple[int, ...], part: torch.Tensor) -> bool:
        info = self._stored.get((name, offsets)) or self._stored.get((name, ()))
        if info is None or getattr(info, "transform_descriptors", None):
            return False
        path = Path(self._path, info.relative_path)
        try:
            with path.open("rb") as file:
                record = read_record(file, info.offset, info.length)
        except FileNotFoundError:
            raise _damaged(path, "it is missing", code="file-missing") from None
        except Exception as error:  # a damaged pickle may raise anything
            _raise_if_transient(self._path, error)
            reason = f"{name} was changed: {_last_line(error)}"
            raise _damaged(path, reason, code="checksum-mismatch") from None
        if record is None or record.tensor.shape != part.shape:
            return False
        item = Item(name, info.offset, info.length, record.at, record.size, record.crc32)
        if record.is_direct and part.is_contiguous() and part.dtype == record.tensor.dtype:
            _fill(path, item, part, verify=bool(record.crc32))
        else:
            flat = torch.empty(record.size, dtype=torch.uint8)
            _fill(path, item, flat, verify=bool(record.crc32))
            layout = (record.tensor.shape, record.tensor.stride(), record.tensor.storage_offset())
            part.copy_(flat.view(record.tensor.dtype).as_strided(*layout))
        return True

    def _read_with_torch(self, name: str, into: torch.Tensor) -> None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                reader, planner = checkpoint_reader.CheckpointReader(self._path), _TensorsOnly()
                load({name: into}, storage_reader=reader, planner=planner, no_dist=True)
        except (CheckpointException, RuntimeError, OSError, UnpicklingError, EOFError) as error:
            _raise_if_transient(self._path, error)
            reason = f"{name} cannot be read: {_last_line(error)}"
            raise CheckpointDamaged(
                f"the checkpoint {self._path}: {reason}", code="tensor-not-readable"
            ) from None


class _TensorsOnly(DefaultLoadPlanner):
    """Planner that refuses to unpickle objects."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Refuse an object where a tensor was expected."""
        raise UnpicklingError(f"{read_item.dest_index.fqn} is no longer a tensor")


def _is_inside(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class _TorchFileSource:
    """A file of `torch.save`, mapped into memory; only tensors and plain values are loaded."""

    def __init__(self, path: str) -> None:
        try:
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except UnpicklingError as error:
            _raise_if_unsafe(path)
            raise _not_loaded(path, error) from None
        except (RuntimeError, EOFError, ValueError) as error:
            _raise_if_transient(path, error)
            raise _not_loaded(path, error) from None
        if damaged := first_damaged_entry(path):
            raise CheckpointDamaged(
                f"{path} cannot be loaded: {damaged} in it was changed", code="checksum-mismatch"
            )
        flat, _ = flatten_state_dict(content if isinstance(content, dict) else {"": content})
        self._tensors: dict[str, Any] = {n: t for n, t in flat.items() if torch.is_tensor(t)}
        self.shapes = {name: (tuple(t.shape), t.dtype) for name, t in self._tensors.items()}

    def read(self, name: str, into: torch.Tensor) -> None:
        """Copy a tensor and release the mapped pages."""
        tensor = self._tensors[name].detach()
        into.copy_(tensor)
        _release_pages(tensor)


def _raise_if_unsafe(path: str) -> None:
    """Raise CheckpointUntrusted with the classes that a file needs, and how to allow them."""
    try:
        classes = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # the file is damaged, too
        return
    if classes:
        names = ", ".join(classes)
        text = (
            f"{path} needs {names}, whose code would run while loading; to allow it, call "
            f"torch.serialization.add_safe_globals([{names}]) in the module of the factory"
        )
        raise CheckpointUntrusted(text, classes=classes)


def _not_loaded(path: str, error: Exception) -> CheckpointDamaged:
    first = (
        str(error).strip().splitlines()[0] if str(error).strip() else "it is not a torch.save file"
    )
    text = f"{path} cannot be loaded: {first}"
    return CheckpointDamaged(text, code="checkpoint-not-readable")


def _release_pages(mapped: torch.Tensor) -> None:
    """Release mapped pages; they are read from the file again when accessed."""
    page = mmap.PAGESIZE
    storage = mapped.untyped_storage()
    begin = -(-storage.data_ptr() // page) * page
    size = (storage.data_ptr() + storage.nbytes() - begin) // page * page
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_PAGEOUT)
