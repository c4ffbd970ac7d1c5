"""Which processes belong to a job, and what dead ones leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.launch import processes
from tests.support import NO_PROCESS


def test_parents_and_children() -> None:
    table = {
        10: processes.ProcInfo(1, 10, "S"),
        11: processes.ProcInfo(10, 10, "S"),
        12: processes.ProcInfo(11, 10, "Z"),
        20: processes.ProcInfo(1, 20, "S"),
    }
    assert processes.descendants(10, table) == {11, 12}
    assert processes.ancestors(12, 10, table) == [11, 10]
    assert processes.ancestors(20, 10, table) == []


def test_numbers_that_were_used_again_while_looking() -> None:
    ring = {11: processes.ProcInfo(12, 11, "S"), 12: processes.ProcInfo(11, 11, "S")}
    assert processes.ancestors(11, 10, ring) == []


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, set[tuple[int, int]]]:
    """The mapped files of each process."""
    mapped: dict[int, set[tuple[int, int]]] = {}
    monkeypatch.setattr(processes, "_mapped_files", lambda pid: mapped.get(pid, set()))
    return mapped


def made(folder: Path, name: str) -> tuple[int, int]:
    (folder / name).write_bytes(b"x")
    return processes._file_identity(folder / name)


def test_shared_memory_of_the_dead_is_removed(
    tmp_path: Path, maps: dict[int, set[tuple[int, int]]]
) -> None:
    dead, alive = NO_PROCESS, os.getpid()
    names = [f"torch_{dead}_1_0", f"torch_{alive}_1_0", f"torch_{dead + 1}_1_0", "psm_left"]
    identities = [made(tmp_path, name) for name in names]
    unmapped = f"torch_{dead}_2_0"  # of a process with that pid in another container
    made(tmp_path, unmapped)
    maps[dead] = maps[alive] = maps[dead + 1] = set(identities)
    shared = processes.SharedMemory(tmp_path)
    shared.record_files({dead, alive})
    assert shared.remove_leftovers() == [names[0]]
    assert shared.remove_leftovers() == []
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names[1:], unmapped])


def test_a_file_that_took_the_place_of_the_first_stays(
    tmp_path: Path, maps: dict[int, set[tuple[int, int]]]
) -> None:
    name = f"torch_{NO_PROCESS}_1_0"
    maps[NO_PROCESS] = {made(tmp_path, name)}
    shared = processes.SharedMemory(tmp_path)
    shared.record_files({NO_PROCESS})
    (tmp_path / "next").write_bytes(b"x")
    (tmp_path / "next").rename(tmp_path / name)
    assert shared.remove_leftovers() == []


def test_maps_are_read_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    monkeypatch.setattr(processes, "_mapped_files", lambda pid: reads.append(pid) or set())
    made(tmp_path, f"torch_{NO_PROCESS}_1_0")
    shared = processes.SharedMemory(tmp_path)
    for _ in range(3):
        shared.record_files({NO_PROCESS})
    assert reads == [NO_PROCESS]
