"""The part of one rank: its tensors and objects in one file, and a note that it is done."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from headway.checkpoint.store.manifest import (
    File,
    Item,
    RankPart,
    data_name,
    part_name,
    part_to_bytes,
)
from headway.checkpoint.store.packed import ZstdCompressor
from headway.checkpoint.store.past import DIRECT_MIN_BYTES, PAGE, USE_PAGE_CACHE
from headway.checkpoint.store.place import Output, open_place, os_errors_as_save_failed
from headway.checkpoint.store.sums import THREADED_MIN_BYTES, ChecksumThread, crc32_combine, summed
from headway.checkpoint.store.torchfile import ALIGNMENT, ZipFrame, zip_frame
from headway.errors import UsageError

SMALL_BUFFER_BYTES = 1 << 20  # small items are written together
CHECKSUM_BLOCK_BYTES = 4 << 20  # bytes that are summed and written at once
RATE_LIMIT_BYTES = 4 << 20  # bytes between two looks at the clock, where a rate is asked for
PROGRESS_BYTES = 64 << 20  # bytes between two looks whether a store takes anything
COMPRESS_BLOCK_BYTES = 4 << 20  # bytes that are compressed at once


@dataclass(frozen=True)
class TensorItem:
    """A tensor: what `dcp.record` makes of its type and shape, and its bytes in row-major order."""

    name: str
    record: bytes
    data: memoryview


class ByteChunks(Protocol):
    """Bytes that come piece by piece; a piece is good until the next one is asked for."""

    def __len__(self) -> int:
        """Of all pieces together."""

    def __iter__(self) -> Iterator[memoryview]:
        """The pieces."""


@dataclass(frozen=True)
class BytesItem:
    """An object that was pickled by the planner, or bytes that are told of elsewhere."""

    name: str
    data: bytes | memoryview | ByteChunks


def write_part(
    folder: str | os.PathLike[str],
    rank: int,
    items: Iterable[TensorItem | BytesItem],
    fsync: bool = True,
    rate: float | None = None,
    compress: bool = False,
    moved: Callable[[], None] = lambda: None,
) -> RankPart:
    """Write the file of a rank into a draft, and when it is safe there say so; `rate`: bytes/s.

    `moved` is called now and then while bytes are taken by the store.
    """
    pace = None if rate is None else RateLimit(rate)
    packer = ZstdCompressor() if compress else None
    where = open_place(folder)
    with os_errors_as_save_failed(
        f"rank {rank} cannot write its part of the checkpoint to {where.url}"
    ):
        where.delete(part_name(rank))
        out = where.open(data_name(rank))
        try:
            file = _write(out, data_name(rank), items, pace, packer, moved)
            out.finish(sync=fsync)
        except BaseException:
            out.drop()
            raise
        part = RankPart(rank, file)
        where.write(part_name(rank), part_to_bytes(part))
    return part


def laid_out(sizes: Iterable[tuple[str, bytes | None, int]]) -> list[Item]:
    """Where items will lie, known before a byte of them is: name, record of a tensor, bytes."""
    spots = []
    end = 0
    for name, record, size in sizes:
        item, _ = _layout_item(name, record, size, end)
        spots.append(item)
        end = item.offset + item.length
    return spots


def _layout_item(
    name: str, record: bytes | None, size: int, end: int
) -> tuple[Item, ZipFrame | None]:
    if record is None:
        return Item(name, end, size, end, size, 0), None
    around = zip_frame(record, size)
    offset = end + -end % ALIGNMENT
    if size >= DIRECT_MIN_BYTES:
        offset += -(offset + len(around.head)) % PAGE
    return Item(name, offset, around.length, offset + len(around.head), size, 0), around


def _write(
    out: Output,
    name: str,
    items: Iterable[TensorItem | BytesItem],
    pace: RateLimit | None,
    packer: ZstdCompressor | None,
    moved: Callable[[], None],
) -> File:
    written: list[Item] = []
    stream = ChecksumWriter(out, pace, moved)
    try:
        for item in items:
            with _chunks(item) as data:
                record = item.record if isinstance(item, TensorItem) else None
                if packer is None:
                    written.append(_put(stream, item.name, record, data))
                else:
                    written.append(_put_compressed(stream, packer, item.name, record, data))
        stream.flush()
    finally:
        stream.close()
    return File(name=name, size=stream.at, crc32=stream.crc32, items=tuple(written))


@contextlib.contextmanager
def _chunks(item: TensorItem | BytesItem) -> Iterator[ByteChunks]:
    """A view is given back also when the disk fails: its memory may have to be closed then."""
    if not isinstance(item.data, (bytes, memoryview)):
        yield item.data
        return
    with memoryview(item.data) as given, _flat(given, item.name) as data:
        yield _SingleChunk(data)


@dataclass(frozen=True)
class _SingleChunk:
    data: memoryview

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[memoryview]:
        yield self.data


def _put(stream: ChecksumWriter, name: str, record: bytes | None, data: ByteChunks) -> Item:
    spot, around = _layout_item(name, record, len(data), stream.at)
    stream.put(bytes(spot.offset - stream.at) + (around.head if around else b""))
    crc32 = stream.put_data(data)
    if around is not None:
        stream.put(around.tail(crc32))
    return replace(spot, crc32=crc32)


def _put_compressed(
    stream: ChecksumWriter,
    packer: ZstdCompressor,
    name: str,
    record: bytes | None,
    data: ByteChunks,
) -> Item:
    """The same in one frame: no more of it than a few pieces is in memory."""
    around = None if record is None else zip_frame(record, len(data))
    head = around.head if around else b""
    packing = packer.begin(around.length if around else len(data))
    begin, raw = stream.at, 0
    crc32 = stream.add(packing.more(head), 0)
    for whole in data:
        for start in range(0, len(whole), COMPRESS_BLOCK_BYTES):
            with whole[start : start + COMPRESS_BLOCK_BYTES] as piece:
                raw = summed(piece, raw)
                crc32 = stream.add(packing.more(piece), crc32)
    if around is not None:
        crc32 = stream.add(packing.more(around.tail(raw)), crc32)
    crc32 = stream.add(packing.end(), crc32)
    size = stream.at - begin
    stream.crc32 = crc32_combine(stream.crc32, crc32, size)
    return Item(name, begin, size, begin, size, crc32, (len(head), len(data)))


def _flat(data: memoryview, name: str) -> memoryview:
    if not data.c_contiguous:
        raise ValueError(f"the bytes of {name} are not in one piece")
    return data.cast("B") if data.nbytes else memoryview(b"")


class ChecksumWriter:
    """What was written so far, and its checksum."""

    def __init__(self, out: Output, pace: RateLimit | None, moved: Callable[[], None]) -> None:
        self.at = 0
        self.crc32 = 0
        self._out = out
        self._pace = pace
        self._moved = moved
        self._small = bytearray()
        self._beside: ChecksumThread | None = None

    def put(self, data: bytes | memoryview) -> None:
        """A small piece."""
        self.crc32 = self.add([data], self.crc32)

    def add(self, pieces: Iterable[bytes | memoryview], crc32: int) -> int:
        """Small pieces of something with a checksum of its own, which goes on with them."""
        for data in pieces:
            crc32 = summed(data, crc32)
            self.at += len(data)
            self._small += data
            if len(self._small) >= SMALL_BUFFER_BYTES:
                self.flush()
        return crc32

    def put_data(self, data: ByteChunks) -> int:
        """The bytes of an item, and their own checksum."""
        crc32 = 0
        if len(data) <= THREADED_MIN_BYTES:
            for piece in data:
                self.put(piece)
                crc32 = summed(piece, crc32)
            return crc32
        self.flush()
        write = self._write_beside if USE_PAGE_CACHE else self._write_along
        for piece in data:
            crc32 = write(piece, crc32)
        self.crc32 = crc32_combine(self.crc32, crc32, len(data))
        self.at += len(data)
        return crc32

    def _write_beside(self, data: memoryview, before: int) -> int:
        """While another thread sums; `before` is the sum of the pieces until then."""
        if self._beside is None:
            self._beside = ChecksumThread()
        self._beside.start(data)
        try:
            for piece in self._paced(data):
                with piece:
                    self._out.write(piece)
        finally:
            crc32 = self._beside.result()
        return crc32_combine(before, crc32, len(data)) if before else crc32

    def _write_along(self, data: memoryview, crc32: int) -> int:
        """By this thread alone: a bit is summed, and written while the cache still has it."""
        for piece in self._paced(data):
            with piece:
                for start in range(0, len(piece), CHECKSUM_BLOCK_BYTES):
                    with piece[start : start + CHECKSUM_BLOCK_BYTES] as part:
                        crc32 = summed(part, crc32)
                        self._out.write(part)
        return crc32

    def flush(self) -> None:
        """Hand on what was gathered."""
        for piece in self._paced(memoryview(bytes(self._small))):
            self._out.write(piece)
        self._small.clear()

    def _paced(self, data: memoryview) -> Iterator[memoryview]:
        size = PROGRESS_BYTES if self._pace is None else RATE_LIMIT_BYTES
        for start in range(0, len(data), size):
            yield data[start : start + size]
            self._moved()
            if self._pace is not None:
                self._pace.wait(min(size, len(data) - start))

    def close(self) -> None:
        """End the thread, if there is one."""
        if self._beside is not None:
            self._beside.close()


class RateLimit:
    """No more bytes in a second than allowed, counted from the first one."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate <= 0:
            raise UsageError(f"a rate is above 0, not {rate}", code="rate-invalid")
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._begun = clock()
        self._bytes = 0

    def wait(self, size: int) -> None:
        """After so many more bytes."""
        self._bytes += size
        early = self._begun + self._bytes / self._rate - self._clock()
        if early > 0:
            self._sleep(early)
