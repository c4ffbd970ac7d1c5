"""The staging buffers of a rank: memory of its writer process, mapped as tensors.

A writer process that was killed is replaced by a new one with empty buffers.
"""

from __future__ import annotations

import base64
import ctypes
import math
import mmap
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.checkpoint.engine.buffers import available_memory
from headway.checkpoint.engine.capture import ChangedRows
from headway.checkpoint.format import dcp
from headway.checkpoint.plan import RankSavePlan
from headway.checkpoint.writer.client import WriterClient, WriterFailed, WriterTaken
from headway.errors import SaveFailed

PAGE_ALIGNED_MIN_BYTES = 1 << 20  # bytes; larger tensors are page-aligned
PAGE, LINE = 4096, 64
STAT_BLOCK_BYTES = 512  # unit of st_blocks
MADV_POPULATE_WRITE = 23  # since Linux 5.14; keeps the content of the pages
POPULATE_BYTES = 64 << 20  # bytes populated by one call


class MappedBuffer:
    """The memory of a staging buffer, and tensors in it."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self._allocated = os.fstat(descriptor).st_blocks * STAT_BLOCK_BYTES  # allocated bytes
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes that were allocated when it was mapped."""
        return self._allocated

    @property
    def address(self) -> int:
        """Its address in this process."""
        return self._bytes.data_ptr()

    def tensor(self, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """A tensor at that offset, without a copy."""
        nbytes = math.prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).view(list(shape))

    def populate(self, size: int) -> None:
        """Allocate that much of it, so that the first copy is as fast as later ones.

        This releases the GIL. Pages that an earlier process has filled only have to be mapped
        again; the copies do that faster, while this would block all memory allocations, including
        those of a CUDA driver.
        """
        if self._allocated >= size:
            return
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for offset in range(0, size, POPULATE_BYTES):
            address = ctypes.c_void_p(self.address + offset)
            length = ctypes.c_size_t(min(POPULATE_BYTES, size - offset))
            if madvise(address, length, MADV_POPULATE_WRITE):
                return  # older kernel: the first copy allocates the pages


def lay_out(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """The offset of each tensor, and the total size."""
    offsets, end = [], 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.dtype.itemsize
        step = PAGE if nbytes >= PAGE_ALIGNED_MIN_BYTES else LINE
        offset = -(-end // step) * step
        offsets.append(offset)
        end = offset + nbytes
    return offsets, max(PAGE, -(-end // PAGE) * PAGE)


BUFFERS = 2  # one is written while the other is filled
STORE_TIMEOUT_S = 300.0  # without any answer of the store
POLL_S = 0.002
SPARE_BYTES = (
    1 << 20
)  # spare bytes of a buffer, or a share of its size, for the additional tensors of an anchor
SPARE_SHARE = 64


class StoreSilent(SaveFailed):
    """The store has not accepted or answered anything for too long."""

    code = "store-silent"


class StagingBuffers:
    """The staging buffers of this rank's share of a state, two by default."""

    def __init__(
        self,
        name: str,
        writer_idle_s: float,
        *,
        commits: bool = False,
        buffers: int = BUFFERS,
        timeout_s: float = STORE_TIMEOUT_S,
    ) -> None:
        self.name, self.writer_idle_s, self.count = name, writer_idle_s, buffers
        self._timeout_s = timeout_s
        self._commits = commits  # the writer of rank 0 commits what all ranks have written
        self.views: list[list[Tensor]] = []  # by buffer
        self._plan: RankSavePlan | None = None
        self._lock = threading.Lock()  # two threads use the connection
        self.last = buffers - 1  # the buffer filled last
        self._size = 0  # of a buffer
        self._buffers: list[MappedBuffer] = []
        self._client = self._connect()
        self.initial_status = self._client.hello
        numbers = [outcome["number"] for outcome in self.initial_status["outcomes"]]
        self._last_outcome = max(numbers, default=-1)  # number of the last reported outcome

    def _connect(self) -> WriterClient:
        try:
            client = WriterClient(self.name, self.writer_idle_s)
        except WriterTaken:  # another job uses the same store
            client = WriterClient(f"{self.name}-{os.getpid()}", self.writer_idle_s)
        if self._commits:
            try:
                client.send("prepare")
            except WriterFailed:
                client.close()
                raise
        return client

    def descriptors(self) -> list[int]:
        """Descriptors of the buffers found at connection; the caller closes them."""
        return self._client.descriptors()

    def reserve(self, plan: RankSavePlan, tensors: Sequence[Tensor]) -> None:
        """Allocate buffers for a plan, and tell the writer their layout."""
        self._plan = plan
        offsets, needed = lay_out(tensors)
        if (
            not needed <= self._size <= 2 * needed + SPARE_BYTES
        ):  # otherwise the existing buffers are used
            size = needed + max(SPARE_BYTES, needed // SPARE_SHARE)
            self._buffers = self._reserve(size, needed)
            self._size = size
        self.views = [
            [m.tensor(at, t.dtype, t.shape) for at, t in zip(offsets, tensors, strict=True)]
            for m in self._buffers
        ]
        self.send("layout", id=plan.id, layout=_describe_layout(plan, tensors, offsets))

    def forget_plan(self) -> None:
        """Forget the plan; another one will be reserved."""
        self.views, self._plan = [], None

    def _reserve(self, size: int, needed: int) -> list[MappedBuffer]:
        with self._lock:
            self._check_memory(size)
            self._client.reserve(self.count, size)
            handles = self._client.descriptors()
        buffers = [MappedBuffer(handle, size) for handle in handles]
        for handle in handles:
            os.close(handle)
        threading.Thread(target=_populate, args=(buffers, needed), daemon=True).start()
        return buffers

    def _check_memory(self, size: int) -> None:
        """Raise if the buffers do not fit: the kernel would kill the training instead."""
        allocated = sum(memory.nbytes for memory in self._buffers) or self._client.nbytes()
        available = available_memory() + allocated
        if self.count * size > available:
            count = "a staging buffer" if self.count == 1 else f"{self.count} staging buffers"
            raise SaveFailed(
                f"{count} of {size >> 20} MB need more than the {available >> 20} MB of memory "
                "that is available; Checkpointer(..., buffers=1) needs half as much",
                code="no-memory-for-images",
                needed=self.count * size,
                available=available,
            )

    def restart_writer(self, tensors: Sequence[Tensor]) -> None:
        """Replace a killed writer; the new one has empty buffers."""
        with self._lock:
            self._client.close()
            self._client = self._connect()
            self._last_outcome = -1
            self._size = 0  # the existing buffers belong to no writer
        if self._plan is not None:
            self.reserve(self._plan, tensors)

    def free_buffer(self, among: Sequence[int]) -> int:
        """Wait for a buffer that is not being written, preferably the older one."""
        while True:
            status = self.status()
            free = [buffer for buffer in among if buffer not in status["busy"]]
            if free:
                self.last = next((buffer for buffer in free if buffer != self.last), free[0])
                return self.last
            self.check_store(status)
            time.sleep(POLL_S)

    def wait_idle(self, until: float | None = None) -> dict[str, Any]:
        """The status once the writer has finished everything, or at that time."""
        while True:
            status = self.status()
            if not status["busy"] and not status["waiting"]:
                return status
            if until is not None and time.monotonic() > until:
                return status
            self.check_store(status)
            time.sleep(POLL_S)

    def check_store(self, status: Mapping[str, Any]) -> None:
        """Raise StoreSilent if the store has not answered for too long."""
        seconds = status["stalled_s"]
        if seconds > self._timeout_s:
            raise StoreSilent(
                f"the store has not accepted or answered anything for {seconds:.0f} s",
                seconds=seconds,
            )

    def protect(self, save: str) -> None:
        """Fill the buffer of that save last."""
        saves = [image.get("save") for image in self.initial_status["images"]]
        self.last = saves.index(save) % self.count

    def send(self, op: str, *descriptors: int, **message: Any) -> None:
        """Send a message that needs no answer."""
        with self._lock:
            self._client.send(op, *descriptors, **message)

    def buffer_ready(self, good: bool, changed: Sequence[ChangedRows], **fields: Any) -> None:
        """Report a filled buffer, with the rows of some tables that differ from the last one."""
        tables, at = [], 8  # empty memory cannot be mapped
        for rows in changed:
            count = len(self.views[0][rows.tensors[0]])
            id_count = rows.ids.numel()
            tables.append({"tensors": rows.tensors, "count": count, "ids": id_count, "at": at})
            at += 8 * id_count
        ids = os.memfd_create("headway-rows", os.MFD_CLOEXEC)
        with open(ids, "wb") as file:
            file.write(bytes(8))
            for rows in changed:
                file.write(dcp.tensor_bytes(rows.ids))
            file.flush()
            self.send("whole", ids, good=good, changed=tables, **fields)

    def status(self) -> dict[str, Any]:
        """The status of the writer."""
        with self._lock:
            return self._client.status()

    def new_outcomes(self, status: dict[str, Any]) -> list[dict[str, Any]]:
        """Outcomes that have not been reported yet."""
        new = [outcome for outcome in status["outcomes"] if outcome["number"] > self._last_outcome]
        if new:
            self._last_outcome = new[-1]["number"]
        return new

    def disconnect(self) -> None:
        """Leave the writer running: it ends once everything is written and no rank connects."""
        with self._lock:
            self._client.close()

    def end(self) -> dict[str, Any]:
        """Wait until everything is written, and end the writer with its buffers."""
        self.views, self._buffers = [], []
        with self._lock:
            status = self._client.end()
            self._client.close()
        return status


def _describe_layout(
    plan: RankSavePlan, tensors: Sequence[Tensor], offsets: Sequence[int]
) -> dict[str, Any]:
    """What the writer needs in order to write the buffers without this process."""
    return {
        "tensors": [
            [
                dcp.item_name(item.index),
                to_base64(dcp.tensor_pickle(t.dtype, t.shape)),
                at,
                t.nbytes,
            ]
            for item, t, at in zip(plan.tensors, tensors, offsets, strict=True)
        ],
        "values": [dcp.item_name(item.index) for item in plan.values],
        "metadata": to_base64(plan.metadata),
    }


def _populate(buffers: Sequence[MappedBuffer], size: int) -> None:
    for buffer in buffers:
        buffer.populate(size)


def to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
