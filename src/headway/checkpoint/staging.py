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

PAGE_ALIGNED_MIN_BYTES = 1 << 20  # bytes: from there on a tensor begins at a page
PAGE, LINE = 4096, 64
STAT_BLOCK_BYTES = 512  # bytes, as st_blocks counts
MADV_POPULATE_WRITE = 23  # since Linux 5.14; what is in the pages stays
POPULATE_BYTES = 64 << 20  # bytes that are populated by one call


class MappedBuffer:
    """One image's bytes, and tensors in them."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(descriptor, size)
        self._allocated = (
            os.fstat(descriptor).st_blocks * STAT_BLOCK_BYTES
        )  # bytes that there is memory for
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes that there was memory for when it was mapped."""
        return self._allocated

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        return self._bytes.data_ptr()

    def tensor(self, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """The one at that place; nothing is copied."""
        nbytes = math.prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).view(list(shape))

    def populate(self, size: int) -> None:
        """Have that much of it, so that the first copy is as fast as the others; lets others run.

        Those that an earlier process has filled only have to be found again. The copies do that
        faster, while this would hold up all who ask for memory, as a CUDA driver does.
        """
        if self._allocated >= size:
            return
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for offset in range(0, size, POPULATE_BYTES):
            address = ctypes.c_void_p(self.address + offset)
            length = ctypes.c_size_t(min(POPULATE_BYTES, size - offset))
            if madvise(address, length, MADV_POPULATE_WRITE):
                return  # an older kernel: the first copy does it


def lay_out(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where each tensor goes, and the size of it all."""
    offsets, end = [], 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.dtype.itemsize
        step = PAGE if nbytes >= PAGE_ALIGNED_MIN_BYTES else LINE
        offset = -(-end // step) * step
        offsets.append(offset)
        end = offset + nbytes
    return offsets, max(PAGE, -(-end // PAGE) * PAGE)


BUFFERS = 2  # one is written while the other is filled
STORE_TIMEOUT_S = 300.0  # without a sign of life of the store
POLL_S = 0.002
SPARE_BYTES = (
    1 << 20
)  # bytes of an image, or a share of them, that are left for what an anchor has more
SPARE_SHARE = 64


class StoreSilent(SaveFailed):
    """The store has not taken or answered anything for too long."""

    code = "store-silent"


class StagingBuffers:
    """Room for this rank's share of a state, twice if it is not said otherwise."""

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
        self._commits = commits  # the writer of rank 0 makes checkpoints of what all have written
        self.views: list[list[Tensor]] = []  # of each image
        self._plan: RankSavePlan | None = None
        self._lock = threading.Lock()  # two threads talk
        self.last = buffers - 1  # the image that was filled last
        self._size = 0  # of an image
        self._buffers: list[MappedBuffer] = []
        self._client = self._connect()
        self.initial_status = self._client.hello
        numbers = [outcome["number"] for outcome in self.initial_status["outcomes"]]
        self._last_outcome = max(numbers, default=-1)  # the last outcome that is no news

    def _connect(self) -> WriterClient:
        try:
            client = WriterClient(self.name, self.writer_idle_s)
        except WriterTaken:  # another job with the same store
            client = WriterClient(f"{self.name}-{os.getpid()}", self.writer_idle_s)
        if self._commits:
            try:
                client.send("prepare")
            except WriterFailed:
                client.close()
                raise
        return client

    def descriptors(self) -> list[int]:
        """Of the images that were there when this process came; the caller closes them."""
        return self._client.descriptors()

    def reserve(self, plan: RankSavePlan, tensors: Sequence[Tensor]) -> None:
        """Memory for what the plan says, and a note of what lies where."""
        self._plan = plan
        offsets, needed = lay_out(tensors)
        if (
            not needed <= self._size <= 2 * needed + SPARE_BYTES
        ):  # else the memory that is there serves
            size = needed + max(SPARE_BYTES, needed // SPARE_SHARE)
            self._buffers = self._reserve(size, needed)
            self._size = size
        self.views = [
            [m.tensor(at, t.dtype, t.shape) for at, t in zip(offsets, tensors, strict=True)]
            for m in self._buffers
        ]
        self.send("layout", id=plan.id, layout=_describe_layout(plan, tensors, offsets))

    def forget_plan(self) -> None:
        """Another one will be reserved for."""
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
        """Raise if the images do not fit: the kernel would end the training instead."""
        allocated = sum(memory.nbytes for memory in self._buffers) or self._client.nbytes()
        available = available_memory() + allocated
        if self.count * size > available:
            count = "an image" if self.count == 1 else f"{self.count} images"
            raise SaveFailed(
                f"{count} of {size >> 20} MB need more than the {available >> 20} MB of memory "
                "that are left; Checkpointer(..., buffers=1) needs half as much as with two",
                code="no-memory-for-images",
                needed=self.count * size,
                available=available,
            )

    def restart_writer(self, tensors: Sequence[Tensor]) -> None:
        """The writer was killed: another one, with empty images."""
        with self._lock:
            self._client.close()
            self._client = self._connect()
            self._last_outcome = -1
            self._size = 0  # what is there is nobody's
        if self._plan is not None:
            self.reserve(self._plan, tensors)

    def free_buffer(self, among: Sequence[int]) -> int:
        """One that is not being written, the older one first; waits for it."""
        while True:
            status = self.status()
            free = [buffer for buffer in among if buffer not in status["busy"]]
            if free:
                self.last = next((buffer for buffer in free if buffer != self.last), free[0])
                return self.last
            self.check_store(status)
            time.sleep(POLL_S)

    def wait_idle(self, until: float | None = None) -> dict[str, Any]:
        """The status once the writer has done everything, or at that time."""
        while True:
            status = self.status()
            if not status["busy"] and not status["waiting"]:
                return status
            if until is not None and time.monotonic() > until:
                return status
            self.check_store(status)
            time.sleep(POLL_S)

    def check_store(self, status: Mapping[str, Any]) -> None:
        """Raise StoreSilent if nobody should wait for the store any longer."""
        seconds = status["stalled_s"]
        if seconds > self._timeout_s:
            raise StoreSilent(
                f"the store has not taken or answered anything for {seconds:.0f} s",
                seconds=seconds,
            )

    def protect(self, save: str) -> None:
        """The image of that save, found when this process came, is the last to be filled again."""
        saves = [image.get("save") for image in self.initial_status["images"]]
        self.last = saves.index(save) % self.count

    def send(self, op: str, *descriptors: int, **message: Any) -> None:
        """Something that needs no answer."""
        with self._lock:
            self._client.send(op, *descriptors, **message)

    def buffer_ready(self, good: bool, changed: Sequence[ChangedRows], **fields: Any) -> None:
        """An image is there; of some tables it is told which rows differ from the last one."""
        tables, at = [], 8  # memory of no bytes cannot be mapped
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
        """What the writer is at."""
        with self._lock:
            return self._client.status()

    def new_outcomes(self, status: dict[str, Any]) -> list[dict[str, Any]]:
        """Those that nobody has heard of yet."""
        new = [outcome for outcome in status["outcomes"] if outcome["number"] > self._last_outcome]
        if new:
            self._last_outcome = new[-1]["number"]
        return new

    def disconnect(self) -> None:
        """The writer goes on alone: it ends when everything is written and nobody comes back."""
        with self._lock:
            self._client.close()

    def end(self) -> dict[str, Any]:
        """Once everything is written, the writer goes, and takes the images with it."""
        self.views, self._buffers = [], []
        with self._lock:
            status = self._client.end()
            self._client.close()
        return status


def _describe_layout(
    plan: RankSavePlan, tensors: Sequence[Tensor], offsets: Sequence[int]
) -> dict[str, Any]:
    """What the writer needs to write the images without this process."""
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
    """What the first copies into new memory would wait for."""
    for buffer in buffers:
        buffer.populate(size)


def to_base64(content: bytes) -> str:
    """For a message."""
    return base64.b64encode(content).decode()
