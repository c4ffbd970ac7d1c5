"""Chunks: equal parts are stored once, only the right bytes come back; parallel transfers."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.storage import chunks
from headway.storage.chunks import DamagedData
from tests.support import examples, has_code


def files(count: int, seed: int = 0) -> list[bytes]:
    random_ = random.Random(seed)
    return [random_.randbytes(random_.randrange(1, 60_000)) for _ in range(count)]


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=40))
def test_the_chunks_are_the_files_end_to_end(contents: list[bytes]) -> None:
    parts = list(chunks.split_chunks(contents))
    assert b"".join(parts) == b"".join(contents)
    assert all(parts)


def test_large_files_are_cut_and_no_chunk_is_larger_than_allowed() -> None:
    large = random.Random(1).randbytes(chunks.PIECE_BYTES * 2 + 5)
    almost = random.Random(2).randbytes(chunks.TARGET_BYTES)
    parts = list(chunks.split_chunks([almost[:-1], almost, large, b"end"]))
    assert b"".join(parts) == almost[:-1] + almost + large + b"end"
    assert max(map(len, parts)) <= chunks.MAX_CHUNK_BYTES


def test_nearly_equal_folders_share_nearly_all_bytes() -> None:
    """Of 200 files one is changed, one is added and one is removed."""
    before = files(200)
    after = [*before[:50], b"changed" + before[50], *before[51:120], *before[121:], b"new file"]
    names = {chunks.chunk_name(part) for part in chunks.split_chunks(before)}
    new = [part for part in chunks.split_chunks(after) if chunks.chunk_name(part) not in names]
    assert sum(map(len, new)) < 0.2 * sum(map(len, after))


def zstd(plain: bytes) -> bytes:
    """A chunk as compressed by earlier versions."""
    return chunks.ZSTD + pytest.importorskip("zstandard").ZstdCompressor(level=3).compress(plain)


PACKERS = {"zlib": chunks.pack_chunk, "zstd": zstd}


@pytest.mark.parametrize("how", PACKERS)
def test_packed_and_back(how: str) -> None:
    plain = b"kernel " * 1000
    packed = PACKERS[how](plain)
    assert packed[:1] == {"zlib": chunks.ZLIB, "zstd": chunks.ZSTD}[how]
    assert len(packed) < len(plain) / 10
    assert chunks.unpack_chunk(packed, len(plain)) == plain


def test_what_does_not_shrink_is_kept_as_it_is() -> None:
    noise = random.Random(3).randbytes(500)
    packed = chunks.pack_chunk(noise)
    assert packed[:1] == chunks.RAW and len(packed) == len(noise) + 1
    assert chunks.unpack_chunk(packed, 500) == noise


@pytest.mark.parametrize("how", PACKERS)
def test_a_bomb_makes_no_more_than_was_said(how: str) -> None:
    bomb = PACKERS[how](bytes(50_000_000))
    with pytest.raises(DamagedData, check=has_code("size-mismatch")) as error:
        chunks.unpack_chunk(bomb, 10)
    assert error.value.fields == {"size": 11, "expected": 10}


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(st.binary(max_size=60), st.integers(0, 100))
def test_rubbish_is_refused(packed: bytes, size: int) -> None:
    with contextlib.suppress(DamagedData):
        assert len(chunks.unpack_chunk(packed, size)) == size


@pytest.mark.parametrize("how", PACKERS)
def test_a_cut_chunk_never_gives_other_bytes(how: str) -> None:
    plain = bytes(range(256)) * 50
    packed = PACKERS[how](plain)
    refused = 0
    for end in range(len(packed)):
        try:  # a last part may hold nothing but a checksum
            assert chunks.unpack_chunk(packed[:end], len(plain)) == plain
        except DamagedData:
            refused += 1
    assert refused > len(packed) / 2


def test_without_zstandard_its_chunks_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd(b"kernel " * 1000)
    monkeypatch.setattr(chunks, "_zstd", lambda: None)
    with pytest.raises(DamagedData, check=has_code("missing-package")):
        chunks.unpack_chunk(packed, 7000)


def test_in_order_whatever_takes_long() -> None:
    first = threading.Event()

    def call(number: int) -> int:
        if number == 0:
            assert first.wait(10)
        first.set()
        return number * number

    assert list(chunks.parallel_map(call, range(50))) == [n * n for n in range(50)]


def test_no_more_is_taken_than_is_at_work() -> None:
    consumed: list[int] = []

    def items() -> object:
        for number in range(100):
            consumed.append(number)
            yield number

    results = chunks.parallel_map(lambda number: number, items())  # type: ignore[arg-type, misc]
    assert next(results) == 0
    assert len(consumed) <= chunks.MAX_THREADS + 1


def test_a_fault_comes_out_in_its_place() -> None:
    def call(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = chunks.parallel_map(call, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_a_process_can_end_while_a_request_never_does() -> None:
    script = (
        "import threading\n"
        "from headway.storage.chunks import parallel_map\n"
        "begun = threading.Event()\n"
        "def never(number):\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "take = lambda: next(parallel_map(never, range(9)))\n"
        "threading.Thread(target=take, daemon=True).start()\n"
        "begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
