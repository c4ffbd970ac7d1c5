"""Asynchronous `torch.save`: copy what it would write, and write the file in the background.

torch's own code pickles the object immediately, into a stand-in for its zip writer; the storages
are copied separately.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import stat
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

from headway.checkpoint.async_save.background import HOOK, BackgroundSave, write_queue
from headway.checkpoint.engine.buffers import MemoryPool
from headway.errors import HeadwayError
from headway.probe import step_clock
from headway.probe.recorder import guard, raised_by_user, recorder
from headway.storage import atomic_file

ALIGNMENT = 64  # bytes
DEVICES = ("cpu", "cuda")
GPU_SPARE_SHARE = 0.05  # share of GPU memory to leave free at the peak of the job


class CannotStage(HeadwayError):
    """Why an object cannot be saved in the background."""


class Records:
    """A stand-in for torch's zip writer that records what would be written, in order."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Any, int]] = []  # name, bytes or storage, size
        self.storages: dict[str, Any] = {}  # by key, as the pickle names them

    def write_record(self, name: str, data: Any, size: int) -> None:
        """Record bytes of the pickle, or a storage."""
        self.records.append((name, data, size))

    def write_record_metadata(self, name: str, size: int) -> None:
        """Record a storage of which torch was told to write only the header."""
        self.records.append((name, self.storages[name.rpartition("/")[2]], size))

    @property
    def nbytes(self) -> int:
        """Bytes of the storages."""
        return sum(
            _align(size) for _, data, size in self.records if not isinstance(data, TEXT_TYPES)
        )


TEXT_TYPES = (bytes, str)


def pickle_records(serialization: Any, obj: object, protocol: int, no_byteorder: bool) -> Records:
    """Let torch pickle the object now. CannotStage if a part of it cannot be copied."""
    records = Records()
    state = serialization._serialization_tls
    previous = state.skip_data
    if previous:
        raise CannotStage("torch.serialization.skip_data is on", code="skip-data-on")
    state.skip_data = _SkipDataOf(records)  # so that torch does not copy the storages
    try:
        module = SimpleNamespace(Pickler=_pickler_class(records.storages), __name__="pickle")
        serialization._save(obj, records, module, protocol, no_byteorder)
    finally:
        state.skip_data = previous
    return records


class _SkipDataOf:
    """A `skip_data` value that is true only for the `_save` that writes these records.

    An object may save or load others while it is pickled, and so may a signal handler: for those
    calls it is false.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def __bool__(self) -> bool:
        return sys._getframe(1).f_locals.get("zip_file") is self._records


def _pickler_class(storages: dict[str, Any]) -> type:
    """A base class for torch's pickler that collects the storages by key."""
    import torch

    class Pickler(pickle.Pickler):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            name: Callable[[Any, Any], Any] = cls.persistent_id

            def persistent_id(self: Any, obj: Any) -> Any:
                storage_id = name(self, obj)
                if storage_id is not None:
                    storages[storage_id[2]] = _untyped_storage(obj)
                return storage_id

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
    """The records with copies of the storages."""

    def __init__(self, records: Records, piece: mmap.mmap) -> None:
        self.piece: mmap.mmap | None = piece
        self.records: list[tuple[str, Any, int]] = []
        self._on_gpu: list[tuple[Any, Any]] = []  # copies on a GPU, with their targets
        self._draining = threading.Lock()
        self._events: list[Any] = []  # by GPU: event after its copies
        self._spare_bytes: dict[Any, int] = {}  # spare bytes by GPU
        self._copy(records, piece)

    def _copy(self, records: Records, piece: mmap.mmap) -> None:
        import torch

        at, empty = 0, torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
        with torch.inference_mode(False), torch.no_grad():
            for name, data, size in records.records:
                if isinstance(data, TEXT_TYPES):
                    self.records.append((name, data, size))
                    continue
                if not size:
                    self.records.append((name, empty, 0))
                    continue
                target = torch.frombuffer(piece, dtype=torch.uint8, offset=at, count=size)
                self._copy_storage(target, _as_tensor(data))
                self.records.append((name, target.untyped_storage(), size))
                at += _align(size)
            if self._on_gpu:
                self._record_events()

    def _copy_storage(self, target: Any, source: Any) -> None:
        from headway.checkpoint.engine.gpu_transfer import on_gpu

        if on_gpu(source):
            if source.device not in self._spare_bytes:
                self._spare_bytes[source.device] = _spare_gpu_bytes(source.device)
            spare = self._spare_bytes[source.device]
            if spare >= source.nbytes:
                self._spare_bytes[source.device] = spare - source.nbytes
                self._on_gpu.append((target, source.clone()))
                return
        target.copy_(source)

    def _record_events(self) -> None:
        """Record an event on each GPU after its copies."""
        from headway.checkpoint.engine.gpu_transfer import gpu_of

        for device in {copy.device for _, copy in self._on_gpu}:
            self._events.append((gpu_of(device), gpu_of(device).record_event()))

    def drain(self) -> None:
        """Copy from the GPUs to the host, while training continues."""
        with self._draining:
            for gpu, copied in self._events:
                pairs = [pair for pair in self._on_gpu if pair[1].device == gpu.device]
                gpu.transfer.to_host(pairs, copied)
            self._on_gpu.clear()
            self._events.clear()

    def drain_ahead(self) -> None:
        """Drain in a separate thread, to free GPU memory before the file is written."""

        def drain() -> None:
            # the error is raised again when the file is written
            with contextlib.suppress(Exception):
                self.drain()

        if self._on_gpu:
            threading.Thread(target=drain, name="headway-drain", daemon=True).start()

    def free(self, pool: MemoryPool) -> None:
        """Return its memory to the pool."""
        piece, self.piece = self.piece, None
        self.records.clear()
        self._on_gpu.clear()
        if piece is not None:
            pool.put_back(piece)


def _as_tensor(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _spare_gpu_bytes(device: Any) -> int:
    """Bytes that a GPU can spare even if the job needs its peak memory again."""
    import torch

    if not step_clock.steps:
        return 0  # the peak is not known yet
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_allocated(device)
    return int(free + held - peak - total * GPU_SPARE_SHARE)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


Original = Callable[..., Any]

OPEN_FILE = CannotStage("the target is an open file", code="open-file")
URL = CannotStage("the target is a URL", code="url")
NESTED = CannotStage("the save is nested in another save", code="nested-save")
ENDING = CannotStage("the process is ending", code="process-ends")


def no_memory(size: int) -> CannotStage:
    """No memory for a copy, now or later."""
    return CannotStage(
        f"not enough memory for a copy of {size:,} bytes", code="no-memory", size=size
    )


def copy_failed(error: Exception) -> CannotStage:
    """An error of the copy; the original call raises it as well unless it is Headway's."""
    return CannotStage(f"{type(error).__name__}: {error}", code="copy-failed")


def save(serialization: Any, original: Original, *args: Any, **kwargs: Any) -> Any:
    """Replacement of torch.save."""
    if write_queue.writes():
        return original(*args, **kwargs)
    arguments = _arguments(args, kwargs)
    if (
        arguments is None
        or isinstance(arguments["f"], (bytes, int))
        or _is_in_memory(arguments["f"])
    ):
        return original(*args, **kwargs)
    if not isinstance(arguments["f"], (str, os.PathLike)):
        return save_synchronously(OPEN_FILE, arguments["f"], original, *args, **kwargs)
    if write_queue.in_save():  # called by a signal handler during a save
        return save_synchronously(NESTED, arguments["f"], original, *args, **kwargs)
    with write_queue.internal():
        reason = _unsupported_reason(arguments) or _save_in_background(serialization, **arguments)
    if reason is not None:
        return save_synchronously(reason, arguments["f"], original, *args, **kwargs)
    write_queue.raise_failed()  # errors of earlier saves; this one is queued
    return None


def save_synchronously(
    reason: CannotStage, target: Any, original: Original, *args: Any, **kwargs: Any
) -> Any:
    """The original call, after all earlier saves; counted."""
    guard(HOOK, _note_synchronous, reason, target)
    write_queue.wait("a synchronous save")
    result = original(*args, **kwargs)
    write_queue.raise_failed()
    return result


def _note_synchronous(reason: CannotStage, target: Any) -> None:
    from headway.probe.hooks.checkpoint import path_of

    recorder.start()
    recorder.emit("behind", path=path_of(target), why=str(reason)[:200], code=reason.code)


def _arguments(args: Any, kwargs: Any) -> dict[str, Any] | None:
    """The arguments of torch.save; None if they are invalid, for torch to report."""
    try:
        return _bind_arguments(*args, **kwargs)
    except TypeError:
        return None


def _bind_arguments(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> dict[str, Any]:
    return {
        "obj": obj,
        "f": f,
        "module": pickle_module,
        "protocol": pickle_protocol,
        "zipped": _use_new_zipfile_serialization,
        "no_byteorder": _disable_byteorder_record,
    }


def _is_in_memory(target: Any) -> bool:
    """Whether the target is a buffer, which needs no background save."""
    return not isinstance(target, os.PathLike) and not isinstance(
        getattr(target, "name", target), str
    )


def _unsupported_reason(arguments: dict[str, Any]) -> CannotStage | None:
    if write_queue.closed:
        return ENDING
    if not isinstance(os.fspath(arguments["f"]), str):
        return CannotStage("the path is not a str", code="path-not-text")
    if arguments["module"] is not pickle:
        name = getattr(arguments["module"], "__name__", arguments["module"])
        return CannotStage(f"pickle_module is {name}", code="pickle-module-not-supported")
    if not arguments["zipped"]:
        return CannotStage("the legacy format was requested", code="format-not-supported")
    if _dispatch_mode_on():
        return CannotStage("a torch dispatch mode is on", code="dispatch-mode-on")
    return rename_unsafe_reason(_real_path(arguments["f"]))


def _dispatch_mode_on() -> bool:
    import torch

    return bool(torch._C._len_torch_dispatch_stack())


def _real_path(target: Any) -> str:
    return str(os.path.realpath(os.fspath(target)))


def _save_in_background(
    serialization: Any, obj: object, f: Any, protocol: int, no_byteorder: bool, **_: Any
) -> CannotStage | None:
    """Copy and queue the save; otherwise return the reason, without side effects."""
    start = monotonic_ns()
    path = _real_path(f)
    atomic, storages, job = None, None, None
    try:
        atomic = atomic_file.AtomicFile(path)
        storages = _copy_storages(pickle_records(serialization, obj, protocol, no_byteorder))
        opened = serialization._open_zipfile_writer(atomic.path)
        write = _write_function(atomic, storages, opened)
        size = sum(size for _, _, size in storages.records)
        job = BackgroundSave(
            path, "torch.save", size, write, step_clock.steps, monotonic_ns() - start
        )
        write_queue.submit(job)
    except BaseException as error:
        if job not in write_queue.pending:
            _discard(atomic, storages)
        if isinstance(error, CannotStage):
            return error.with_traceback(None)  # its frames reference the state
        if not isinstance(error, Exception) or raised_by_user(error):
            raise
        return copy_failed(error)
    if write_queue.pending[:1] != [job]:
        guard(HOOK, storages.drain_ahead)
    return None


def _write_function(
    atomic: atomic_file.AtomicFile, storages: StorageCopy, opened: Any
) -> Callable[[], None]:
    def write() -> None:
        try:
            storages.drain()
            with opened as zipped:
                for name, data, size in storages.records:
                    zipped.write_record(name, data, size)
            atomic.commit()
        finally:
            _discard(atomic, storages)
        atomic_file.remove_abandoned(atomic.parent)

    return write


def _discard(atomic: atomic_file.AtomicFile | None, storages: StorageCopy | None) -> None:
    if atomic is not None:
        atomic.discard()
    if storages is not None:
        storages.free(write_queue.pool)


def _copy_storages(records: Any) -> StorageCopy:
    """Copy into free memory, or wait for memory of queued saves."""
    while True:
        waiting = list(write_queue.pending)
        piece = write_queue.pool.take(records.nbytes)
        if piece is not None:
            return StorageCopy(records, piece)
        if not waiting:
            raise no_memory(records.nbytes)
        write_queue.wait_for(waiting[0], "memory")


def rename_unsafe_reason(target: str) -> CannotStage | None:
    """Why replacing the file by a rename would differ from writing into it."""
    try:
        status = os.stat(target)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return CannotStage("the target is not a regular file", code="not-a-regular-file")
    if status.st_nlink > 1:
        return CannotStage("the file has several hard links", code="several-links")
    if status.st_uid != os.geteuid() or not os.access(target, os.W_OK):
        return CannotStage(
            "the file belongs to another user or is not writable", code="not-writable"
        )
    return None
