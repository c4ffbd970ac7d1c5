"""The data file of one rank in a checkpoint, and the file that marks it as complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from headway.checkpoint.format.torch_zip import ALIGNMENT, ZipFrame, zip_frame
from headway.checkpoint.store.layout import (
    File,
    Item,
    RankPart,
    data_name,
    part_name,
    part_to_bytes,
)
from headway.storage.codecs import ZstdCompressor, crc32_combine, crc32_of
from headway.storage.output import (
    DIRECT_MIN_BYTES,
    PAGE,
    ByteChunks,
    ChecksumWriter,
    Output,
    RateLimit,
)
from headway.storage.place import open_place, os_errors_as_save_failed

COMPRESS_BLOCK_BYTES = 4 << 20  # bytes compressed at once


@dataclass(frozen=True)
class TensorItem:
    """A tensor: its `dcp.tensor_pickle`, and its bytes in row-major order."""

    name: str
    record: bytes
    data: memoryview


@dataclass(frozen=True)
class BytesItem:
    """A pickled object, or bytes that are described elsewhere."""

    name: str
    data: bytes | memoryview | ByteChunks


def write_part(
    folder: str | os.PathLike[str],
    rank: int,
    items: Iterable[TensorItem | BytesItem],
    fsync: bool = True,
    rate: float | None = None,
    compress: bool = False,
    on_progress: Callable[[], None] = lambda: None,
) -> RankPart:
    """Write the data file of a rank into a draft, then mark it as complete; `rate` is in bytes/s.

    `moved` is called now and then while the store accepts bytes.
    """
    rate_limit = None if rate is None else RateLimit(rate)
    compressor = ZstdCompressor() if compress else None
    where = open_place(folder)
    with os_errors_as_save_failed(
        f"rank {rank} cannot write its part of the checkpoint to {where.url}"
    ):
        where.delete(part_name(rank))
        out = where.create(data_name(rank))
        try:
            file = _write(out, data_name(rank), items, rate_limit, compressor, on_progress)
            out.commit(sync=fsync)
        except BaseException:
            out.discard()
            raise
        part = RankPart(rank, file)
        where.write(part_name(rank), part_to_bytes(part))
    return part


def _layout_item(
    name: str, record: bytes | None, size: int, end: int
) -> tuple[Item, ZipFrame | None]:
    if record is None:
        return Item(name, end, size, end, size, 0), None
    frame = zip_frame(record, size)
    offset = end + -end % ALIGNMENT
    if size >= DIRECT_MIN_BYTES:
        offset += -(offset + len(frame.head)) % PAGE
    return Item(name, offset, frame.length, offset + len(frame.head), size, 0), frame


def _write(
    out: Output,
    name: str,
    items: Iterable[TensorItem | BytesItem],
    rate_limit: RateLimit | None,
    compressor: ZstdCompressor | None,
    on_progress: Callable[[], None],
) -> File:
    written: list[Item] = []
    stream = ChecksumWriter(out, rate_limit, on_progress)
    try:
        for item in items:
            with _chunks(item) as data:
                record = item.record if isinstance(item, TensorItem) else None
                if compressor is None:
                    written.append(_put(stream, item.name, record, data))
                else:
                    written.append(_put_compressed(stream, compressor, item.name, record, data))
        stream.flush()
    finally:
        stream.close()
    return File(name=name, size=stream.at, crc32=stream.crc32, items=tuple(written))


@contextlib.contextmanager
def _chunks(item: TensorItem | BytesItem) -> Iterator[ByteChunks]:
    """The bytes of an item.

    Views are released even if the disk fails: their memory may be closed then.
    """
    if not isinstance(item.data, (bytes, memoryview)):
        yield item.data
        return
    with memoryview(item.data) as view, _flat(view, item.name) as data:
        yield _SingleChunk(data)


@dataclass(frozen=True)
class _SingleChunk:
    data: memoryview

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[memoryview]:
        yield self.data


def _put(stream: ChecksumWriter, name: str, record: bytes | None, data: ByteChunks) -> Item:
    item, frame = _layout_item(name, record, len(data), stream.at)
    stream.put(bytes(item.offset - stream.at) + (frame.head if frame else b""))
    crc32 = stream.put_data(data)
    if frame is not None:
        stream.put(frame.tail(crc32))
    return replace(item, crc32=crc32)


def _put_compressed(
    stream: ChecksumWriter,
    compressor: ZstdCompressor,
    name: str,
    record: bytes | None,
    data: ByteChunks,
) -> Item:
    """Write one compressed frame, with only a few blocks in memory."""
    frame = None if record is None else zip_frame(record, len(data))
    head = frame.head if frame else b""
    zstd_frame = compressor.start_frame(frame.length if frame else len(data))
    begin, raw = stream.at, 0
    crc32 = stream.add(zstd_frame.compress(head), 0)
    for chunk in data:
        for start in range(0, len(chunk), COMPRESS_BLOCK_BYTES):
            with chunk[start : start + COMPRESS_BLOCK_BYTES] as piece:
                raw = crc32_of(piece, raw)
                crc32 = stream.add(zstd_frame.compress(piece), crc32)
    if frame is not None:
        crc32 = stream.add(zstd_frame.compress(frame.tail(raw)), crc32)
    crc32 = stream.add(zstd_frame.finish(), crc32)
    size = stream.at - begin
    stream.crc32 = crc32_combine(stream.crc32, crc32, size)
    return Item(name, begin, size, begin, size, crc32, (len(head), len(data)))


def _flat(data: memoryview, name: str) -> memoryview:
    if not data.c_contiguous:
        raise ValueError(f"the bytes of {name} are not contiguous")
    return data.cast("B") if data.nbytes else memoryview(b"")
