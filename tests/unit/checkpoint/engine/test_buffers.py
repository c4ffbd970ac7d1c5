"""Room for images: memory that stays as long as it fits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.checkpoint.engine import buffers
from headway.checkpoint.engine.buffers import EMPTY, FILLING, BufferSet


def test_a_piece_is_used_again_if_it_is_not_much_too_large() -> None:
    pool = buffers.MemoryPool()
    first = pool.take(10_000)
    assert first is not None
    pool.put_back(first)
    assert pool.take(6_000) is first
    pool.put_back(first)
    other = pool.take(4_000)
    assert other is not None and other is not first
    assert pool.take(0) is not None


def test_it_keeps_a_few_pieces_only() -> None:
    pool = buffers.MemoryPool()
    for size in range(1, 2 * buffers.MAX_FREE_PIECES):
        piece = buffers.mmap.mmap(-1, size)
        pool.put_back(piece)
    assert len(pool._free) == buffers.MAX_FREE_PIECES


def test_half_of_what_is_left_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "available_memory", lambda: 100_000)
    pool = buffers.MemoryPool()
    assert pool.take(50_000) is not None
    assert pool.take(50_001) is None


def test_the_container_counts_as_well_as_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = buffers.available_memory()
    assert machine > 0
    monkeypatch.setattr(buffers, "CGROUPS", str(tmp_path))
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 10\ninactive_file 1500\n")
    assert buffers.available_memory() == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert buffers.available_memory() > 2500


def test_room_stays_if_it_fits() -> None:
    images = BufferSet()
    images.reserve(2, 8192)
    first = images.buffers[0]
    os.pwrite(first.descriptor, b"there", 100)
    first.state, first.step, first.contents = FILLING, 7, {"save": "a"}
    images.reserve(2, 8192)
    assert images.buffers[0] is first
    assert os.pread(images.buffers[0].descriptor, 5, 100) == b"there"
    assert first.public() == {"state": FILLING, "step": 7, "save": "a"}
    images.close()


@pytest.mark.parametrize(("count", "size"), [(3, 8192), (2, 4096)])
def test_other_room_is_new_and_the_old_is_let_go(count: int, size: int) -> None:
    images = BufferSet()
    images.reserve(2, 8192)
    before = len(os.listdir("/proc/self/fd"))
    images.reserve(count, size)
    assert len(os.listdir("/proc/self/fd")) == before + count - 2
    assert [os.fstat(image.descriptor).st_size for image in images.buffers] == [size] * count
    assert {image.state for image in images.buffers} == {EMPTY}
    images.close()
    assert images.buffers == []


def test_no_room() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        BufferSet().reserve(1, -1)
    assert len(os.listdir("/proc/self/fd")) == before
