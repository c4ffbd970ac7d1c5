from __future__ import annotations

from pathlib import Path

import pytest

from headway.checkpoint.behind import memory


def test_a_piece_is_used_again_if_it_is_not_much_too_large() -> None:
    pool = memory.MemoryPool()
    first = pool.take(10_000)
    assert first is not None
    pool.give(first)
    assert pool.take(6_000) is first
    pool.give(first)
    other = pool.take(4_000)
    assert other is not None and other is not first
    assert pool.take(0) is not None


def test_it_keeps_a_few_pieces_only() -> None:
    pool = memory.MemoryPool()
    for size in range(1, 2 * memory.MAX_FREE_PIECES):
        piece = memory.mmap.mmap(-1, size)
        pool.give(piece)
    assert len(pool._free) == memory.MAX_FREE_PIECES


def test_half_of_what_is_left_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 100_000)
    pool = memory.MemoryPool()
    assert pool.take(50_000) is not None
    assert pool.take(50_001) is None


def test_the_container_counts_as_well_as_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = memory.available_memory()
    assert machine > 0
    monkeypatch.setattr(memory, "CGROUPS", str(tmp_path))
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 10\ninactive_file 1500\n")
    assert memory.available_memory() == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() > 2500
