"""What torch.save would write at this moment, kept in memory.

torch itself pickles, at once and by its own code, into a stand-in for its zip writer; the bytes of
the storages are copied beside that.
"""

from __future__ import annotations

import contextlib
import mmap
import pickle
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headway.checkpoint.behind.memory import MemoryPool
from headway.errors import HeadwayError
from headway.probe import pace

ALIGNMENT = 64  # bytes
DEVICES = ("cpu", "cuda")
GPU_SPARE_SHARE = 0.05  # of a GPU's memory that must be left when the job is back at its peak


class CannotStage(HeadwayError):
    """What is saved cannot be written behind the training: why."""


class Records:
    """Stands in for torch's zip writer: keeps what would be written, in its order."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Any, int]] = []  # name, bytes or storage, size
        self.storages: dict[str, Any] = {}  # by key, as the pickle names them

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Bytes of the pickle, or a storage."""
        self.kept.append((name, data, size))

    def write_record_metadata(self, name: str, size: int) -> None:
        """A storage, of which torch was told to write the place only."""
        self.kept.append((name, self.storages[name.rpartition("/")[2]], size))

    @property
    def nbytes(self) -> int:
        """Of the storages."""
        return sum(_align(size) for _, data, size in self.kept if not isinstance(data, TEXT_TYPES))


TEXT_TYPES = (bytes, str)


def pickle_records(serialization: Any, obj: object, protocol: int, no_byteorder: bool) -> Records:
    """Let torch pickle it now; raises Unsafe where a part of it cannot be copied."""
    records = Records()
    local = serialization._serialization_tls
    before = local.skip_data
    if before:
        raise CannotStage("torch.serialization.skip_data is on", code="skip-data-on")
    local.skip_data = _SkipDataOf(records)  # so that torch leaves the storages to us
    try:
        module = SimpleNamespace(Pickler=_pickler_class(records.storages), __name__="pickle")
        serialization._save(obj, records, module, protocol, no_byteorder)
    finally:
        local.skip_data = before
    return records


class _SkipDataOf:
    """A value of `skip_data` that is true only for the `_save` that writes to these records.

    An object may save or load others while it is pickled, and so may a signal handler: for them it
    is false.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def __bool__(self) -> bool:
        return sys._getframe(1).f_locals.get("zip_file") is self._records


def _pickler_class(storages: dict[str, Any]) -> type:
    """Notes the storages that torch's own pickler, made from it, gives a key."""
    import torch

    class Pickler(pickle.Pickler):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            name: Callable[[Any, Any], Any] = cls.persistent_id

            def persistent_id(self: Any, obj: Any) -> Any:
                told = name(self, obj)
                if told is not None:
                    storages[told[2]] = _untyped_storage(obj)
                return told

            cls.persistent_id = persistent_id  # type: ignore[method-assign]

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, torch.Tensor) and obj.device.type not in DEVICES:
                raise CannotStage(f"a tensor is on {obj.device.type}", code="device-not-supported")
            return NotImplemented

    return Pickler


def _untyped_storage(storage: Any) -> Any:
    storage = getattr(storage, "_untyped_storage", storage)
    if storage.device.type not in DEVICES:
        raise CannotStage(f"a storage is on {storage.device.type}", code="device-not-supported")
    return storage


class StorageCopy:
    """The records with storages of their own."""

    def __init__(self, records: Records, piece: mmap.mmap) -> None:
        self.piece: mmap.mmap | None = piece
        self.kept: list[tuple[str, Any, int]] = []
        self._late: list[tuple[Any, Any]] = []  # still on a GPU, and where it goes
        self._draining = threading.Lock()
        self._copied: list[Any] = []  # each GPU, and when the copies on it are there
        self._room: dict[Any, int] = {}  # bytes that each GPU can spare
        self._copy(records, piece)

    def _copy(self, records: Records, piece: mmap.mmap) -> None:
        import torch

        at, none = 0, torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
        with torch.inference_mode(False), torch.no_grad():
            for name, data, size in records.kept:
                if isinstance(data, TEXT_TYPES):
                    self.kept.append((name, data, size))
                    continue
                if not size:
                    self.kept.append((name, none, 0))
                    continue
                place = torch.frombuffer(piece, dtype=torch.uint8, offset=at, count=size)
                self._take(place, _as_tensor(data))
                self.kept.append((name, place.untyped_storage(), size))
                at += _align(size)
            if self._late:
                self._mark()

    def _take(self, place: Any, source: Any) -> None:
        from headway.checkpoint.snapshot.gpu import on_gpu

        if on_gpu(source):
            if source.device not in self._room:
                self._room[source.device] = _spare_gpu_bytes(source.device)
            room = self._room[source.device]
            if room >= source.nbytes:
                self._room[source.device] = room - source.nbytes
                self._late.append((place, source.clone()))
                return
        place.copy_(source)

    def _mark(self) -> None:
        """Note on each GPU where the copies are done."""
        from headway.checkpoint.snapshot.gpu import gpu_of

        for device in {copy.device for _, copy in self._late}:
            self._copied.append((gpu_of(device), gpu_of(device).moment()))

    def drain(self) -> None:
        """Bring what is still on a GPU to the host, beside the training."""
        with self._draining:
            for gpu, copied in self._copied:
                pairs = [pair for pair in self._late if pair[1].device == gpu.device]
                gpu.lanes.to_host(pairs, copied)
            self._late.clear()
            self._copied.clear()

    def drain_ahead(self) -> None:
        """The same in a thread of its own: the GPU has its memory back before the file's turn."""

        def drain() -> None:
            with contextlib.suppress(Exception):  # whoever writes the file meets it too
                self.drain()

        if self._late:
            threading.Thread(target=drain, name="headway-drain", daemon=True).start()

    def free(self, pool: MemoryPool) -> None:
        """Give its memory back."""
        piece, self.piece = self.piece, None
        self.kept.clear()
        self._late.clear()
        if piece is not None:
            pool.give(piece)


def _as_tensor(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _spare_gpu_bytes(device: Any) -> int:
    """Bytes that a GPU can spare, also when the job needs again what it once needed."""
    import torch

    if not pace.steps:
        return 0  # what it will need is not known
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_allocated(device)
    return int(free + held - peak - total * GPU_SPARE_SHARE)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
