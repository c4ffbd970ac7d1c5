"""Keeping a store: what is in it, whether it is whole, and what may go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.compile.archive import signing
from headway.compile.archive.keep import GRACE_S, Cleared, clear, shelf, sizes, verify
from headway.compile.archive.manifest import Manifest
from headway.compile.archive.places import DRAFTS, Folder
from headway.compile.archive.store import Store
from headway.compile.archive.tree import DAY
from tests.unit.compile.archive.made import NOW, save, tree, wanted


@pytest.fixture
def team(tmp_path: Path) -> Store:
    """Three archives of 10 kB each, a day apart, of chunks that are old."""
    made = Store(str(tmp_path / "store"), signing.Secret(b"0123456789abcdef"))
    for number in range(3):
        folder = tree(tmp_path / str(number), {"x": bytes([number]) + os.urandom(10_000)})
        save(made, folder, wanted(job=f"job{number}"), now=NOW - (3 - number) * DAY)
    age(made, NOW - 3 * DAY)
    return made


def root(of: Store) -> Path:
    assert isinstance(of.place, Folder)
    return of.place.root


def age(of: Store, to: float) -> None:
    for path in root(of).rglob("*"):
        if path.is_file():
            os.utime(path, (to, to))


def jobs(of: Store) -> list[str]:
    return [one.manifest.job for one in shelf(of) if one.manifest]


def test_all_archives_the_newest_last(team: Store) -> None:
    assert jobs(team) == ["job0", "job1", "job2"]
    assert all(verify(team, one) == "" for one in shelf(team))
    assert len(sizes(team)) == 3 and all(size > 10_000 for size in sizes(team).values())


def test_one_that_is_not_whole_is_named(team: Store) -> None:
    first, second, _ = shelf(team)
    assert first.manifest and second.manifest
    path = root(team) / "chunks" / first.manifest.chunks[0].name[:2]
    (path / first.manifest.chunks[0].name).unlink()
    (root(team) / second.name).write_bytes(b"rubbish")
    told = [verify(team, one) for one in shelf(team)]
    assert [why.code for why in told] == ["chunk-missing", "not-an-archive", ""]
    assert first.manifest.chunks[0].name[:12] in told[0]


def test_nothing_goes_that_is_needed(team: Store) -> None:
    assert clear(team, now=NOW) == Cleared(archives=0, chunks=0, bytes=0, unread=0)
    assert all(verify(team, one) == "" for one in shelf(team))


def test_by_age(team: Store) -> None:
    dry = clear(team, max_age_s=1.5 * DAY, now=NOW, dry=True)
    assert (dry.archives, dry.chunks) == (2, 2) and dry.bytes > 20_000
    assert jobs(team) == ["job0", "job1", "job2"]
    assert clear(team, max_age_s=1.5 * DAY, now=NOW) == dry
    assert jobs(team) == ["job2"]
    assert len(sizes(team)) == 1
    assert all(verify(team, one) == "" for one in shelf(team))


def test_by_size_the_oldest_first(team: Store) -> None:
    assert clear(team, max_size=25_000, now=NOW).archives == 1
    assert jobs(team) == ["job1", "job2"]
    clear(team, max_size=0, now=NOW)
    assert jobs(team) == [] and sizes(team) == {}


def test_shared_chunks_count_once_and_stay(team: Store, tmp_path: Path) -> None:
    content = (tmp_path / "2" / "x").read_bytes()
    save(team, tree(tmp_path / "same", {"x": content}), wanted(job="same"), now=NOW)
    age(team, NOW - 3 * DAY)
    assert len(sizes(team)) == 3
    clear(team, max_size=15_000, now=NOW)
    assert jobs(team) == ["job2", "same"]
    assert all(verify(team, one) == "" for one in shelf(team))


def test_what_is_young_may_belong_to_an_archive_that_is_being_made(team: Store) -> None:
    team.place.write("chunks/ab/" + "ab" * 32, b"new")
    os.utime(root(team) / "chunks/ab" / ("ab" * 32), (NOW - GRACE_S + 1,) * 2)
    assert clear(team, now=NOW).chunks == 0
    assert clear(team, now=NOW + 2).chunks == 1


def test_what_a_killed_writer_has_left_goes(team: Store) -> None:
    (root(team) / DRAFTS / "left").write_bytes(bytes(100))
    os.utime(root(team) / DRAFTS / "left", (NOW - 2 * DAY,) * 2)
    assert clear(team, now=NOW).bytes == 100
    assert list((root(team) / DRAFTS).iterdir()) == []


def test_while_one_cannot_be_read_all_chunks_stay(team: Store) -> None:
    """Another key, or a newer Headway, may be able to read it."""
    (first, *_) = shelf(team)
    (root(team) / first.name).write_bytes(b"rubbish")
    done = clear(team, max_age_s=0, now=NOW)
    assert (done.archives, done.chunks, done.unread) == (2, 0, 1)
    assert (root(team) / first.name).exists() and len(sizes(team)) == 3
    wrong = Store(team.place.url, signing.Secret(b"fedcba9876543210"))
    assert clear(wrong, max_age_s=0, now=NOW) == Cleared(archives=0, chunks=0, bytes=0, unread=1)


def test_an_archive_that_is_saved_meanwhile_keeps_its_chunks(
    team: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares an old chunk that nothing needed when the clearing began."""
    (first, *_) = shelf(team)
    assert first.manifest is not None
    (root(team) / first.name).unlink()
    entries, saved = team.place.entries, list[Manifest]()

    def meanwhile(below: str) -> object:
        if below == DRAFTS and not saved:
            saved.append(first.manifest)  # type: ignore[arg-type]
            team.adopt(first.manifest, lambda chunk: b"")  # type: ignore[arg-type]
        return entries(below)

    body = team.chunk(first.manifest.chunks[0])
    monkeypatch.setattr(team, "_put", lambda chunk: None)  # it knows that the chunk is there
    monkeypatch.setattr(team.place, "entries", meanwhile)
    clear(team, now=NOW)
    assert saved and team.chunk(first.manifest.chunks[0]) == body


def test_an_odd_name_cannot_reach_the_terminal(team: Store) -> None:
    team.place.write("archives/key/job/\x1b[2Jx", b"rubbish")
    assert {one.id for one in shelf(team) if not one.manifest} == {"?[2Jx"}
