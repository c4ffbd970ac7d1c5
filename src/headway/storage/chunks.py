"""Split files into chunks named by their content, compress them, and transfer them in parallel.

The files are concatenated in the order of their names. A chunk ends where a file ends, chosen by
the content of that file and never at a fixed distance: adding or removing a file changes one chunk.
Transfers run in daemon threads: at its end a process waits for the threads of `concurrent.futures`,
and a store may never answer.
"""

from __future__ import annotations

import hashlib
import importlib
import queue
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from headway.errors import HeadwayError, install_command

TARGET_BYTES = 1 << 20  # a chunk of this size ends at the next end of a file
PIECE_BYTES = 4 << 20  # files larger than TARGET_BYTES are cut into pieces of this size
MAX_CHUNK_BYTES = max(PIECE_BYTES, 2 * TARGET_BYTES)  # no chunk is larger
BOUNDARY_ONE_IN = 8  # one in so many files ends its chunk, whatever the size
ZLIB_LEVEL = 3
MAX_THREADS = 8  # of a parallel_map

RAW, ZLIB, ZSTD = b"r", b"d", b"z"

In = TypeVar("In")
Out = TypeVar("Out")


class DamagedData(HeadwayError):
    """Data that does not match its name, size or format."""


def split_chunks(files: Iterable[bytes]) -> Iterator[bytes]:
    """Split concatenated files into chunks."""
    pending: list[bytes] = []
    size = 0
    for content in files:
        if len(content) > TARGET_BYTES:
            if pending:
                yield b"".join(pending)
            yield from (
                content[start : start + PIECE_BYTES]
                for start in range(0, len(content), PIECE_BYTES)
            )
            pending, size = [], 0
            continue
        pending.append(content)
        size += len(content)
        if size and (
            size >= TARGET_BYTES or hashlib.sha256(content).digest()[0] % BOUNDARY_ONE_IN == 0
        ):
            yield b"".join(pending)
            pending, size = [], 0
    if size:
        yield b"".join(pending)


def chunk_name(content: bytes) -> str:
    """The name of a chunk: a hash of its content."""
    return hashlib.sha256(content).hexdigest()


def pack_chunk(content: bytes) -> bytes:
    """Compress a chunk; the first byte names the method.

    Always zlib, which every Python has, so that everyone can read the archives.
    """
    packed = ZLIB + zlib.compress(content, ZLIB_LEVEL)
    return packed if len(packed) <= len(content) else RAW + content


def unpack_chunk(packed: bytes, size: int) -> bytes:
    """Decompress a chunk of a known size; never produces more than `size` + 1 bytes."""
    how, body = packed[:1], packed[1:]
    if how == RAW:
        content = body
    elif how == ZLIB:
        content = _inflate(body, size)
    elif how == ZSTD:
        content = _unzstd(body, size)
    else:
        raise DamagedData("unknown compression method", code="compression-unknown")
    if len(content) != size:
        raise DamagedData(
            f"it has {len(content)} bytes instead of {size}",
            code="size-mismatch",
            size=len(content),
            expected=size,
        )
    return content


def _inflate(body: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(body, size + 1)
    except zlib.error as error:
        raise DamagedData(str(error), code="compression-damaged") from None
    if len(content) <= size and not inflater.eof:
        raise DamagedData("the data is truncated", code="compression-damaged")
    return content


def _unzstd(body: bytes, size: int) -> bytes:
    """Decompress chunks written by earlier versions."""
    module = _zstd()
    if module is None:
        raise DamagedData(
            f"it is compressed with zstd; type: {install_command('zstd')}", code="missing-package"
        )
    unpacker = module.ZstdDecompressor()
    try:
        if module.__name__ == "zstandard":
            content: bytes = unpacker.stream_reader(body).read(size + 1)
        else:
            content = unpacker.decompress(body, size + 1)
    except (module.ZstdError, EOFError) as error:
        raise DamagedData(str(error), code="compression-damaged") from None
    return content


def _zstd() -> Any:
    """The module of Python 3.14 or later, else the package zstandard; None if neither exists."""
    for module in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    return None


def parallel_map(call: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """Yield `call(item)` for each item, in order; reads at most MAX_THREADS items ahead."""
    todo: queue.SimpleQueue[tuple[Future[Out], In] | None] = queue.SimpleQueue()
    pending: deque[Future[Out]] = deque()
    threads = 0

    def work() -> None:
        while (task := todo.get()) is not None:
            future, item = task
            try:
                future.set_result(call(item))
            except BaseException as error:
                future.set_exception(error)

    try:
        for item in items:
            if len(pending) >= MAX_THREADS:
                yield pending.popleft().result()
            pending.append(Future())
            todo.put((pending[-1], item))
            if threads < MAX_THREADS:
                threads += 1
                threading.Thread(target=work, name="headway-parallel-map", daemon=True).start()
        while pending:
            yield pending.popleft().result()
    finally:
        for _ in range(threads):
            todo.put(None)
