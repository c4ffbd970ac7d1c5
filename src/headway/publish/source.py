"""The tensors of an anchor by name, each read into memory that is already there.

Bytes go straight from the disk to where they belong: reading takes no memory beside the model's.
Nothing is read that nobody asks for: an optimizer's state stays on the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from headway.checkpoint.store import dcp
from headway.checkpoint.store.manifest import Item
from headway.checkpoint.store.read import Checkpoint
from headway.errors import CheckpointDamaged
from headway.publish.anchor import Anchor

PIECE = 64 << 20  # bytes that are read at once
PAGEOUT = 21  # of madvise


class Source(Protocol):
    """The tensors of one anchor."""

    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fill a tensor of the same shape; its type may be another one."""


def source(one: Anchor) -> Source:
    """The tensors of an anchor of any kind."""
    if one.kind == "store":
        return _Store(one.chain)
    return _Dcp(one.path) if one.kind == "dcp" else _File(one.path)


def whole(given: Source, name: str) -> torch.Tensor:
    """One tensor in memory of its own."""
    shape, dtype = given.shapes[name]
    made = torch.empty(shape, dtype=dtype)
    given.read(name, made)
    return made


def _shapes(path: str) -> dict[str, TensorStorageMetadata]:
    try:
        known = FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # a damaged pickle may raise anything
        why = f"its .metadata cannot be read: {type(error).__name__}"
        raise CheckpointDamaged(f"the checkpoint {path} cannot be loaded: {why}") from None
    return {name: one for name, one in known.items() if isinstance(one, TensorStorageMetadata)}


class _Store:
    """A checkpoint of a store: a full one, and what the deltas after it have changed."""

    def __init__(self, chain: Iterable[Checkpoint]) -> None:
        self._chain = tuple(chain)
        self._told = {one.path: _shapes(one.path) for one in self._chain}
        self._items = {
            one.path: {
                item.name: (file.name, item) for file in one.manifest.files for item in file.items
            }
            for one in self._chain
        }
        self.shapes = {
            name: (tuple(told.size), told.properties.dtype)
            for known in self._told.values()
            for name, told in known.items()
        }

    def read(self, name: str, into: torch.Tensor) -> None:
        """From the last that has it as a whole; then the rows that later ones have changed."""
        having = [at for at, one in enumerate(self._chain) if name in self._told[one.path]]
        self._read(self._chain[having[-1]].path, name, into)
        for delta in self._chain[having[-1] + 1 :]:
            dcp.apply_rows(delta.path, delta.manifest, {name: into})

    def _read(self, path: str, name: str, into: torch.Tensor) -> None:
        told = self._told[path][name]
        items = self._items[path]
        for chunk in told.chunks:
            at = f"[{', '.join(map(str, chunk.offsets))}]" if any(chunk.offsets) else ""
            file, item = items[name + at]
            part = narrow_tensor_by_index(into, chunk.offsets, chunk.sizes)
            straight = part.is_contiguous() and part.dtype == told.properties.dtype
            room = part if straight else torch.empty(chunk.sizes, dtype=told.properties.dtype)
            _fill(Path(path, file), item, room)
            if not straight:
                part.copy_(room)


def _fill(path: Path, item: Item, room: torch.Tensor) -> None:
    """The bytes of one item, and their checksum compared."""
    view, done, crc32 = dcp.raw(room), 0, 0
    try:
        with path.open("rb", buffering=0) as file:
            while done < len(view) and (
                got := os.preadv(file.fileno(), [view[done : done + PIECE]], item.data + done)
            ):
                crc32 = zlib.crc32(view[done : done + got], crc32)
                done += got
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    if done != item.size:
        raise _damaged(path, f"it ends before {item.name}")
    if crc32 != item.crc32:
        raise _damaged(path, f"{item.name} was changed")


def _damaged(path: Path, why: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"{path.name} of the checkpoint {path.parent} cannot be used: {why}")


class _Dcp:
    """A checkpoint that others have made with DCP; one tensor at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        known = _shapes(path)
        self.shapes = {n: (tuple(told.size), told.properties.dtype) for n, told in known.items()}

    def read(self, name: str, into: torch.Tensor) -> None:
        """As torch does."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load({name: into}, storage_reader=dcp.Reader(self._path), no_dist=True)
        except (CheckpointException, RuntimeError, OSError, UnpicklingError, EOFError) as error:
            why = f"{name} cannot be read: {_last(error)}"
            raise CheckpointDamaged(f"the checkpoint {self._path}: {why}") from None


def _last(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class _File:
    """What `torch.save` has written: mapped, and nothing but tensors and plain values."""

    def __init__(self, path: str) -> None:
        try:
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except (RuntimeError, UnpicklingError, EOFError, ValueError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else "it is no file"
            raise CheckpointDamaged(f"{path} cannot be loaded: {first}") from None
        flat, _ = flatten_state_dict(found if isinstance(found, dict) else {"": found})
        self._tensors: dict[str, Any] = {n: t for n, t in flat.items() if torch.is_tensor(t)}
        self.shapes = {name: (tuple(t.shape), t.dtype) for name, t in self._tensors.items()}

    def read(self, name: str, into: torch.Tensor) -> None:
        """Copy it, and let the memory go that the file is mapped to."""
        found = self._tensors[name].detach()
        into.copy_(found)
        _let_go(found)


def _let_go(mapped: torch.Tensor) -> None:
    """What is not in memory any more is read again from the file if somebody looks."""
    page = mmap.PAGESIZE
    storage = mapped.untyped_storage()
    begin = -(-storage.data_ptr() // page) * page
    size = (storage.data_ptr() + storage.nbytes() - begin) // page * page
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), PAGEOUT)
