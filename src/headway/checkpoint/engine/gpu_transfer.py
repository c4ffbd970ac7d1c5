"""Copies between a GPU and pageable host memory, through a few pinned buffers.

Pinning gigabytes takes seconds, blocks the driver, and would be repeated by every process. Instead
each pinned buffer has a thread that copies one block after the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TRANSFER_THREADS = min(8, max(4, len(os.sched_getaffinity(0)) // 2))
PINNED_BUFFER_BYTES = 32 << 20  # bytes of the pinned buffer of a thread
HAS_NUMPY = importlib.util.find_spec("numpy") is not None


class PinnedTransfer:
    """Copies between one GPU and the host."""

    def __init__(
        self,
        device: torch.device,
        threads: int = TRANSFER_THREADS,
        block_bytes: int = PINNED_BUFFER_BYTES,
    ) -> None:
        self.device = device
        self.block_bytes = block_bytes
        pinned = device.type == "cuda"
        self._buffers = [
            torch.empty(block_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(threads)
        ]
        cuda: Any = torch.cuda  # untyped
        self._streams = [cuda.Stream(device) if pinned else None for _ in range(threads)]
        self._lock = threading.Lock()

    def to_host(self, pairs: Sequence[tuple[Tensor, Tensor]], after: Any = None) -> None:
        """Copy (host, GPU) pairs to the host; return when done.

        `after` is an event on the GPU to wait for before the first byte is read.
        """
        self._transfer(byte_blocks(pairs, self.block_bytes), after, self._copy_to_host)

    def to_device(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy (GPU, host) pairs to the GPU; return when done."""
        self._transfer(byte_blocks(pairs, self.block_bytes), None, self._copy_to_device)

    def to_rows(self, parts: Sequence[tuple[Tensor, Tensor, Tensor]], after: Any = None) -> None:
        """Copy (host table, row ids, GPU rows) to those rows; no row is longer than a buffer."""
        self._transfer(row_blocks(parts, self.block_bytes), after, self._copy_rows_to_host)

    def _transfer(self, blocks: Iterator[tuple[Tensor, ...]], after: Any, copy: Any) -> None:
        with self._lock:  # one transfer at a time: the buffers are shared
            self._transfer_locked(blocks, after, copy)

    def _transfer_locked(self, blocks: Iterator[tuple[Tensor, ...]], after: Any, copy: Any) -> None:
        todo: queue.SimpleQueue[tuple[Tensor, ...] | None] = queue.SimpleQueue()
        for block in blocks:
            todo.put(block)
        failed: list[BaseException] = []
        thread_numbers = range(min(len(self._buffers), todo.qsize()))
        for _ in thread_numbers:
            todo.put(None)
        threads = [
            threading.Thread(target=self._run, args=(lane, todo, after, copy, failed), daemon=True)
            for lane in thread_numbers[1:]
        ]
        with contextlib.suppress(RuntimeError):  # no new threads at process exit
            for thread in threads:
                thread.start()
        if thread_numbers:  # this thread takes part: often there is one block only
            self._run(0, todo, after, copy, failed)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if failed:
            raise failed[0]

    def _run(
        self, number: int, todo: Any, after: Any, copy: Any, failed: list[BaseException]
    ) -> None:
        buffer, stream = self._buffers[number], self._streams[number]
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                if stream is not None and after is not None:
                    stream.wait_event(after)
                while (block := todo.get()) is not None and not failed:
                    copy(buffer, stream, *block)
        except BaseException as error:
            failed.append(error)

    @staticmethod
    def _copy_to_host(buffer: Tensor, stream: Any, host: Tensor, source: Tensor) -> None:
        part = buffer[: source.nbytes]
        part.copy_(source, non_blocking=True)
        if stream is not None:
            stream.synchronize()
        copy_bytes(host, part)

    @staticmethod
    def _copy_rows_to_host(
        buffer: Tensor, stream: Any, host: Tensor, ids: Tensor, source: Tensor
    ) -> None:
        part = buffer[: source.nbytes].view(source.dtype).view(source.shape)
        part.copy_(source, non_blocking=True)
        if stream is not None:
            stream.synchronize()
        put_rows(host, ids, part)

    @staticmethod
    def _copy_to_device(buffer: Tensor, stream: Any, target: Tensor, host: Tensor) -> None:
        part = buffer[: host.nbytes]
        copy_bytes(part, host)
        target.copy_(part, non_blocking=True)
        if stream is not None:
            stream.synchronize()  # the buffer is reused


def copy_bytes(target: Tensor, source: Tensor) -> None:
    """Copy in this thread only, without the GIL."""
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


def put_rows(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Write rows in this thread only: torch would use a thread per core."""
    if not HAS_NUMPY:
        table.index_copy_(0, ids, rows)
    elif rows.numel():
        target, source = (
            tensor.view(torch.uint8).view(len(tensor), -1) for tensor in (table, rows)
        )
        target.numpy()[ids.numpy()] = source.numpy()


def byte_blocks(
    pairs: Sequence[tuple[Tensor, Tensor]], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The bytes of each pair in blocks; both tensors are contiguous."""
    for target, source in pairs:
        flat = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in (target, source)]
        for at in range(0, len(flat[0]), size):
            yield flat[0][at : at + size], flat[1][at : at + size]


def row_blocks(
    parts: Sequence[tuple[Tensor, Tensor, Tensor]], size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The rows of each part in blocks."""
    for host, ids, source in parts:
        count = size // max(1, source[:1].nbytes) or 1
        for at in range(0, len(ids), count):
            yield host, ids[at : at + count], source[at : at + count]


SPARE_SHARE = 0.05  # share of GPU memory left free, for fragmentation


class Gpu:
    """A GPU; without CUDA, copies are synchronous."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._pinned: PinnedTransfer | None = None
        self._cuda: Any = torch.cuda if device.type == "cuda" else None  # untyped
        # High priority: optimizers wait for rows gathered on this stream.
        self._stream = self._cuda and self._cuda.Stream(device, priority=-1)

    @property
    def transfer(self) -> PinnedTransfer:
        """Created once, as pinned memory is slow to allocate."""
        with self._lock:
            if self._pinned is None:
                self._pinned = PinnedTransfer(self.device)
            return self._pinned

    def record_event(self) -> Any:
        """Record an event on the current stream."""
        if self._cuda is None:
            return None
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self.device))
        return event

    def wait_event(self, event: Any) -> None:
        """Make the current stream wait for the event, without blocking the host."""
        if event is not None:
            self._cuda.current_stream(self.device).wait_event(event)

    @contextlib.contextmanager
    def side_stream(self, event: Any) -> Iterator[None]:
        """Run on a separate stream, after the event."""
        with torch.no_grad():
            if self._cuda is None:
                yield
                return
            with self._cuda.device(self.device), self._cuda.stream(self._stream):
                self.wait_event(event)
                yield

    def free_bytes(self) -> int:
        """Bytes that are free even if the job needs its peak memory again."""
        free, total = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_reserved(self.device)
        peak = torch.cuda.max_memory_allocated(self.device)
        return int(free + held - peak - total * SPARE_SHARE)


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured; its replays run no hooks."""
    cuda: Any = torch.cuda
    return cuda.is_initialized() and bool(cuda.is_current_stream_capturing())


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


_GPUS: dict[torch.device, Gpu] = {}
_LOCK = threading.Lock()


def gpu_of(device: torch.device) -> Gpu:
    """The shared Gpu of this process."""
    with _LOCK:
        if device not in _GPUS:
            _GPUS[device] = Gpu(device)
        return _GPUS[device]
