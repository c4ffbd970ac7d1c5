"""Memory that another process owns: the images are in it, and stay when this process dies."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

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
        self._pages = (
            os.fstat(descriptor).st_blocks * STAT_BLOCK_BYTES
        )  # bytes that there is memory for
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes that there was memory for when it was mapped."""
        return self._pages

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
        if self._pages >= size:
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
