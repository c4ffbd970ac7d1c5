"""List, verify and garbage-collect the archives of a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.cleanup import (
    GRACE_S,
    CleanupResult,
    chunk_sizes,
    collect_garbage,
    list_archives,
    verify_archive,
)
from headway.compile.cache.folder import DAY
from headway.compile.cache.manifest import Manifest
from headway.storage import signing
from headway.storage.object_places import DRAFTS, FolderObjectPlace
from tests.unit.compile.cache.sample_archives import NOW, save, tree, wanted


@pytest.fixture
def team(tmp_path: Path) -> ArchiveStore:
    """Three archives of 10 kB each, one per day, with old chunks."""
    store = ArchiveStore(str(tmp_path / "store"), signing.HmacKey(b"0123456789abcdef"))
    for number in range(3):
        folder = tree(tmp_path / str(number), {"x": bytes([number]) + os.urandom(10_000)})
        save(store, folder, wanted(job=f"job{number}"), now=NOW - (3 - number) * DAY)
    age(store, NOW - 3 * DAY)
    return store


def root(store: ArchiveStore) -> Path:
    assert isinstance(store.place, FolderObjectPlace)
    return store.place.root


def age(store: ArchiveStore, to: float) -> None:
    for path in root(store).rglob("*"):
        if path.is_file():
            os.utime(path, (to, to))


def jobs(store: ArchiveStore) -> list[str]:
    return [archive.manifest.job for archive in list_archives(store) if archive.manifest]


def test_all_archives_the_newest_last(team: ArchiveStore) -> None:
    assert jobs(team) == ["job0", "job1", "job2"]
    assert all(verify_archive(team, archive) == "" for archive in list_archives(team))
    assert len(chunk_sizes(team)) == 3 and all(size > 10_000 for size in chunk_sizes(team).values())


def test_one_that_is_not_whole_is_named(team: ArchiveStore) -> None:
    first, second, _ = list_archives(team)
    assert first.manifest and second.manifest
    path = root(team) / "chunks" / first.manifest.chunks[0].name[:2]
    (path / first.manifest.chunks[0].name).unlink()
    (root(team) / second.name).write_bytes(b"rubbish")
    reasons = [verify_archive(team, archive) for archive in list_archives(team)]
    assert [why.code for why in reasons] == ["chunk-missing", "not-an-archive", ""]
    assert first.manifest.chunks[0].name[:12] in reasons[0]


def test_nothing_goes_that_is_needed(team: ArchiveStore) -> None:
    assert collect_garbage(team, now=NOW) == CleanupResult(
        archives=0, chunks=0, bytes=0, unreadable=0
    )
    assert all(verify_archive(team, archive) == "" for archive in list_archives(team))


def test_by_age(team: ArchiveStore) -> None:
    dry = collect_garbage(team, max_age_s=1.5 * DAY, now=NOW, dry_run=True)
    assert (dry.archives, dry.chunks) == (2, 2) and dry.bytes > 20_000
    assert jobs(team) == ["job0", "job1", "job2"]
    assert collect_garbage(team, max_age_s=1.5 * DAY, now=NOW) == dry
    assert jobs(team) == ["job2"]
    assert len(chunk_sizes(team)) == 1
    assert all(verify_archive(team, archive) == "" for archive in list_archives(team))


def test_by_size_the_oldest_first(team: ArchiveStore) -> None:
    assert collect_garbage(team, max_size=25_000, now=NOW).archives == 1
    assert jobs(team) == ["job1", "job2"]
    collect_garbage(team, max_size=0, now=NOW)
    assert jobs(team) == [] and chunk_sizes(team) == {}


def test_shared_chunks_count_once_and_stay(team: ArchiveStore, tmp_path: Path) -> None:
    content = (tmp_path / "2" / "x").read_bytes()
    save(team, tree(tmp_path / "same", {"x": content}), wanted(job="same"), now=NOW)
    age(team, NOW - 3 * DAY)
    assert len(chunk_sizes(team)) == 3
    collect_garbage(team, max_size=15_000, now=NOW)
    assert jobs(team) == ["job2", "same"]
    assert all(verify_archive(team, archive) == "" for archive in list_archives(team))


def test_what_is_young_may_belong_to_an_archive_that_is_being_made(team: ArchiveStore) -> None:
    team.place.write("chunks/ab/" + "ab" * 32, b"new")
    os.utime(root(team) / "chunks/ab" / ("ab" * 32), (NOW - GRACE_S + 1,) * 2)
    assert collect_garbage(team, now=NOW).chunks == 0
    assert collect_garbage(team, now=NOW + 2).chunks == 1


def test_what_a_killed_writer_has_left_goes(team: ArchiveStore) -> None:
    (root(team) / DRAFTS / "left").write_bytes(bytes(100))
    os.utime(root(team) / DRAFTS / "left", (NOW - 2 * DAY,) * 2)
    assert collect_garbage(team, now=NOW).bytes == 100
    assert list((root(team) / DRAFTS).iterdir()) == []


def test_while_one_cannot_be_read_all_chunks_stay(team: ArchiveStore) -> None:
    """Another key, or a newer Headway, may be able to read it."""
    (first, *_) = list_archives(team)
    (root(team) / first.name).write_bytes(b"rubbish")
    done = collect_garbage(team, max_age_s=0, now=NOW)
    assert (done.archives, done.chunks, done.unreadable) == (2, 0, 1)
    assert (root(team) / first.name).exists() and len(chunk_sizes(team)) == 3
    wrong = ArchiveStore(team.place.url, signing.HmacKey(b"fedcba9876543210"))
    assert collect_garbage(wrong, max_age_s=0, now=NOW) == CleanupResult(
        archives=0, chunks=0, bytes=0, unreadable=1
    )


def test_an_archive_that_is_saved_meanwhile_keeps_its_chunks(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares an old chunk that nothing needed when the garbage collection started."""
    (first, *_) = list_archives(team)
    assert first.manifest is not None
    (root(team) / first.name).unlink()
    entries, saved = team.place.entries, list[Manifest]()

    def meanwhile(below: str) -> object:
        if below == DRAFTS and not saved:
            saved.append(first.manifest)  # type: ignore[arg-type]
            team.import_archive(first.manifest, lambda chunk: b"")  # type: ignore[arg-type]
        return entries(below)

    body = team.read_chunk(first.manifest.chunks[0])
    monkeypatch.setattr(
        team, "_write_chunk", lambda chunk: None
    )  # it knows that the chunk is there
    monkeypatch.setattr(team.place, "entries", meanwhile)
    collect_garbage(team, now=NOW)
    assert saved and team.read_chunk(first.manifest.chunks[0]) == body


def test_an_odd_name_cannot_reach_the_terminal(team: ArchiveStore) -> None:
    team.place.write("archives/key/job/\x1b[2Jx", b"rubbish")
    assert {archive.id for archive in list_archives(team) if not archive.manifest} == {"?[2Jx"}
