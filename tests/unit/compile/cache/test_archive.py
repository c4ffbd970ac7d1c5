"""The archive store: find by key, verify, publish and merge."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache import archive, keys
from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import DAY, CacheFolder
from headway.compile.cache.manifest import Manifest, encode_manifest
from headway.probe import host_facts
from headway.storage import chunks, signing
from headway.storage.object_places import FolderObjectPlace, ObjectMissing
from tests.unit.compile.cache import sample_archives
from tests.unit.compile.cache.sample_archives import (
    FACTS,
    NOW,
    content,
    fill,
    library,
    save,
    tree,
    wanted,
)

FILES = {"ab/x.so": library(3000), "ab/x.py": b"print()", "fxgraph/k/v": b"graph" * 100}


@pytest.fixture
def team(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(str(tmp_path / "store"), signing.HmacKey(b"0123456789abcdef"))


def archives(store: ArchiveStore) -> list[Path]:
    return sorted(path for path in root(store).glob("archives/*/*/*"))


def root(store: ArchiveStore) -> Path:
    assert isinstance(store.place, FolderObjectPlace)
    return store.place.root


def restored(
    store: ArchiveStore, folder: Path, want: keys.CacheKey | None = None
) -> tuple[CacheLookup, CacheFolder, int]:
    into = CacheFolder(folder)
    lookup, files = store.restore(store.find(want or wanted()), into)
    return lookup, into, files


@pytest.fixture(params=["signed folder", "own folder", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    key = signing.HmacKey(b"0123456789abcdef")
    if request.param == "memory":
        return ArchiveStore(f"memory://{tmp_path.name}", key)
    return ArchiveStore(str(tmp_path / "store"), key if request.param == "signed folder" else None)


def test_what_is_there_is_not_fetched_again(
    any_store: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of the other ranks of a node."""
    save(any_store, tree(tmp_path / "a", FILES))
    fetched: list[str] = []
    read_chunk = any_store.read_chunk

    def counted(chunk: Any) -> bytes:
        fetched.append(chunk.name)
        return read_chunk(chunk)

    monkeypatch.setattr(any_store, "read_chunk", counted)
    assert restored(any_store, tmp_path / "b")[2] == len(FILES)
    whole, fetched[:] = len(fetched), []
    lookup, into, files = restored(any_store, tmp_path / "b")
    assert (lookup.level, files, fetched) == ("exact", 0, [])
    assert into.restored.keys() == FILES.keys()
    (into.root / min(FILES)).unlink()
    assert restored(any_store, tmp_path / "b")[2] == 1 and len(fetched) == whole
    assert content(into.root) == FILES


# -- finding ------------------------------------------------------------------------------------


def test_saved_found_and_restored(any_store: ArchiveStore, tmp_path: Path) -> None:
    manifest = save(any_store, tree(tmp_path / "a", FILES))
    assert manifest is not None
    lookup, into, files = restored(any_store, tmp_path / "b")
    assert (lookup.level, lookup.reason, files, lookup.cold_s) == ("exact", "", 3, 1.0)
    assert content(into.root) == FILES
    assert save(any_store, into, base=lookup) is None  # it has all of it


def test_the_levels_and_their_words(team: ArchiveStore, tmp_path: Path) -> None:
    lookup = team.find(wanted())
    assert (lookup.level, lookup.reason.code) == ("miss", "store-empty")
    save(team, tree(tmp_path / "a", FILES))
    assert team.find(wanted()).level == "exact"
    changed = team.find(wanted(code="2"))
    assert (changed.level, changed.reason.code) == ("job", "code-changed")
    near = team.find(wanted(job="other"))
    assert (near.level, near.reason.code) == ("near", "archive-of-another-job")
    moved = team.find(wanted(place=["/elsewhere", "/usr"]))
    assert (moved.level, moved.reason.code) == ("exact", "torch-moved")
    miss = team.find(wanted(torch="2.12.0"))
    assert (miss.level, miss.reason.code) == ("miss", "machine-differs")
    assert "2.12.0" in miss.reason and "2.13.0" in miss.reason
    for path in archives(team):
        path.unlink()
    deleted = team.find(wanted())
    assert (deleted.level, deleted.reason.code) == ("miss", "archives-gone")


def test_a_miss_is_told_by_the_machine_that_is_most_alike(
    team: ArchiveStore, tmp_path: Path
) -> None:
    save(team, tree(tmp_path / "a", FILES), wanted(torch="2.11.0", python="cpython-310"))
    save(team, tree(tmp_path / "b", FILES), wanted(torch="2.12.0"))
    why = team.find(wanted()).reason
    assert "2.12.0" in why and "2.11.0" not in why


def test_of_other_jobs_the_newest_is_taken(team: ArchiveStore, tmp_path: Path) -> None:
    for number in range(5):
        folder = tree(tmp_path / str(number), {"x": bytes([number])})
        save(team, folder, wanted(job=f"job{number}"), now=NOW + number)
    lookup, into, _ = restored(team, tmp_path / "c", wanted(job="mine"))
    assert [manifest.job for manifest in lookup.manifests] == ["job4"]
    assert content(into.root) == {"x": b"\4"}


def test_packages_are_not_taken_from_other_jobs(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", {**FILES, "dynamo/abc/entry": b"package"}))
    assert "dynamo/abc/entry" in content(restored(team, tmp_path / "b")[1].root)
    _, into, _ = restored(team, tmp_path / "c", wanted(job="other"))
    assert content(into.root) == FILES


def test_one_that_is_superseded_while_we_look_is_looked_for_again(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(team, tree(tmp_path / "a", FILES))
    assert first is not None
    (old,) = archives(team)
    listed = [(str(old.relative_to(root(team))), 1, NOW)]
    save(team, tree(tmp_path / "b", FILES), base=CacheLookup(level="job", manifests=(first,)))
    assert not old.exists()
    entries, stale = team.place.entries, [listed]

    def once_stale(below: str) -> Iterator[tuple[str, int, float]]:
        return iter(stale.pop()) if stale else entries(below)

    monkeypatch.setattr(team.place, "entries", once_stale)
    assert team.find(wanted()).level == "exact"
    assert not stale


@pytest.mark.parametrize(
    "junk", [b"", b"[]", b"{", b"\xff\xfe", b"null", b'{"torch": {"a": []}}', b"[" * 100_000]
)
def test_whatever_is_said_of_machines_is_only_talked_about(
    team: ArchiveStore, junk: bytes, tmp_path: Path
) -> None:
    team.place.write("machines/junk.json", junk)
    team.place.write("machines/large.json", bytes(archive.MAX_FACTS_BYTES + 1))
    lookup = team.find(wanted())
    assert lookup.level == "miss" and lookup.reason


# -- trust --------------------------------------------------------------------------------------


def test_what_another_key_signed_is_refused(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    other = ArchiveStore(team.place.url, signing.HmacKey(b"fedcba9876543210"))
    lookup, into, files = restored(other, tmp_path / "b")
    assert (lookup.level, files, content(into.root)) == ("miss", 0, {})
    (why,) = lookup.refusals
    assert why.code == "signature-mismatch"


def test_what_is_unsigned_is_refused_once_there_is_a_key(tmp_path: Path) -> None:
    own = ArchiveStore(str(tmp_path / "store"))
    save(own, tree(tmp_path / "a", FILES))
    signed = ArchiveStore(str(tmp_path / "store"), signing.HmacKey(b"0123456789abcdef"))
    lookup = signed.find(wanted())
    assert lookup.level == "miss" and lookup.refusals[0].code == "archive-not-signed"


def test_every_byte_of_a_manifest_is_verified(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    (path,) = archives(team)
    whole = path.read_bytes()
    for at in range(0, len(whole), 17):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert team.find(wanted()).level == "miss"
        path.write_bytes(whole[:at])
        assert team.find(wanted()).level == "miss"


@pytest.mark.parametrize("to", ["job", "key", "id"])
def test_a_signed_manifest_counts_only_in_its_place(
    team: ArchiveStore, to: str, tmp_path: Path
) -> None:
    save(team, tree(tmp_path / "a", FILES))
    (path,) = archives(team)
    key = host_facts.compile_key(FACTS | {"torch": "2.12.0"})
    moved = {
        "job": path.parent.parent / "other" / path.name,
        "key": root(team) / "archives" / key / "train" / path.name,
        "id": path.with_name("18f00000000-00000000"),
    }[to]
    moved.parent.mkdir(parents=True, exist_ok=True)
    path.rename(moved)
    want = {"job": wanted(job="other"), "key": wanted(torch="2.12.0"), "id": wanted()}[to]
    lookup = team.find(want)
    assert lookup.level == "miss"
    assert lookup.refusals[0].code == "archive-in-wrong-place"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("changed", "chunk-changed"),
        ("cut", "size-mismatch"),
        ("swapped", "size-mismatch"),
        ("gone", "chunk-missing"),
        ("empty", "compression-unknown"),
        ("huge", "archive-too-large"),
    ],
)
def test_a_chunk_that_is_not_what_was_signed_is_refused_and_mended(
    team: ArchiveStore, how: str, code: str, tmp_path: Path
) -> None:
    """The job compiles again and saves, which repairs the store."""
    random_ = random.Random(0)
    files = {f"d/{number}": random_.randbytes(100_000) for number in range(30)}
    save(team, tree(tmp_path / "a", files))
    paths = sorted(path for path in root(team).glob("chunks/*/*"))
    bad, other = paths[-1], paths[0]
    assert bad != other
    body = bad.read_bytes()
    if how == "gone":
        bad.unlink()
    else:
        bad.write_bytes(
            {
                "changed": body[:-1] + bytes([body[-1] ^ 1]),
                "cut": body[:-10],
                "swapped": other.read_bytes(),
                "empty": b"",
                "huge": body + bytes(chunks.MAX_CHUNK_BYTES),
            }[how]
        )
    lookup, into, made_ = restored(team, tmp_path / "b")
    assert (lookup.level, made_, content(into.root)) == ("miss", 0, {})
    assert lookup.reason == lookup.refusals[-1] and lookup.reason.code == code
    fill(into.root, files)
    assert save(team, into, base=lookup) is not None
    again = restored(team, tmp_path / "c")[0]
    assert (again.level, again.refusals, len(archives(team))) == ("exact", (), 1)
    assert content(tmp_path / "c") == files


def test_of_two_archives_the_good_one_is_used(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", {"a": os.urandom(1000)}))
    bad = set(root(team).glob("chunks/*/*"))
    save(team, tree(tmp_path / "b", FILES), now=NOW + 1)
    for path in bad:
        path.unlink()
    lookup, into, _ = restored(team, tmp_path / "c")
    assert lookup.level == "exact" and len(lookup.manifests) == len(lookup.refusals) == 1
    assert content(into.root) == FILES


@pytest.mark.parametrize("what", ["archives", "chunks"])
def test_without_a_key_nothing_that_others_could_change_is_used(what: str, tmp_path: Path) -> None:
    own = ArchiveStore(str(tmp_path / "store"))
    save(own, tree(tmp_path / "a", FILES))
    for path in root(own).glob(f"{what}/**/*"):
        if path.is_file():
            path.chmod(0o666)
    lookup, into, files = restored(own, tmp_path / "b")
    assert (lookup.level, files, content(into.root)) == ("miss", 0, {})
    assert lookup.refusals[0].code == "writable-by-others"


def test_a_path_out_of_the_folder_is_refused_even_if_signed(
    team: ArchiveStore, tmp_path: Path
) -> None:
    manifest = sample_archives.manifest(
        files=(replace(sample_archives.manifest().files[0], path="../../out", size=5),)
    )
    body = signing.seal(encode_manifest(manifest), team.key)
    team.place.write(f"archives/{host_facts.compile_key(FACTS)}/train/{manifest.id}", body)
    lookup = team.find(wanted())
    assert lookup.level == "miss" and lookup.refusals[0].code == "file-outside-folder"


# -- saving -------------------------------------------------------------------------------------


def test_two_that_save_at_once_lose_nothing(any_store: ArchiveStore, tmp_path: Path) -> None:
    save(any_store, tree(tmp_path / "0", FILES))
    manifest, first, _ = restored(any_store, tmp_path / "1")
    two, second, _ = restored(any_store, tmp_path / "2")
    fill(first.root, {"one": b"1"})
    fill(second.root, {"two": b"2"})
    save(any_store, first, base=manifest, now=NOW + 1)
    save(any_store, second, base=two, now=NOW + 2)
    lookup, third, _ = restored(any_store, tmp_path / "3")
    assert len(lookup.manifests) == 2
    assert content(third.root) == {**FILES, "one": b"1", "two": b"2"}
    assert save(any_store, third, base=lookup, now=NOW + 3) is not None
    merged = any_store.find(wanted())
    assert len(merged.manifests) == 1
    assert content(restored(any_store, tmp_path / "4")[1].root) == content(third.root)


def test_only_what_is_new_is_written(team: ArchiveStore, tmp_path: Path) -> None:
    random_ = random.Random(0)
    files = {f"d/{number:03}": random_.randbytes(20_000) for number in range(100)}
    save(team, tree(tmp_path / "a", files))
    before = sum(path.stat().st_size for path in root(team).glob("chunks/*/*"))
    lookup, into, _ = restored(team, tmp_path / "b")
    fill(into.root, {"e/new": b"new"})
    save(team, into, base=lookup, now=NOW + 1)
    after = sum(path.stat().st_size for path in root(team).glob("chunks/*/*"))
    assert after - before < 0.2 * before
    assert len(archives(team)) == 1


def test_what_a_job_finds_in_a_folder_of_its_own_is_not_lost(
    team: ArchiveStore, tmp_path: Path
) -> None:
    """The second run: all files are already in the user's folder, and older than the run."""
    save(team, tree(tmp_path / "a", FILES))
    fill(tmp_path / "user", FILES)
    for name in FILES:
        os.utime(tmp_path / "user" / name, (1e9, 1e9))
    into = CacheFolder(tmp_path / "user", owned=False)
    lookup, files = team.restore(team.find(wanted()), into)
    assert files == 0
    fill(into.root, {"new": b"new"})
    save(team, into, base=lookup, now=NOW + 1)
    assert content(restored(team, tmp_path / "b")[1].root) == {**FILES, "new": b"new"}


def test_what_vanishes_from_the_folder_is_not_lost(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b")
    (into.root / "ab/x.py").unlink()
    fill(into.root, {"new": b"new"})
    manifest = save(team, into, base=lookup, now=NOW + 1)
    assert manifest is not None and manifest.supersedes == ()
    assert content(restored(team, tmp_path / "c")[1].root) == {**FILES, "new": b"new"}


def test_a_profile_that_has_changed_is_saved(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", {"dynamo/code_state_train_0_.pkl": b"one"}))
    lookup, into, _ = restored(team, tmp_path / "b")
    assert save(team, into, base=lookup, now=NOW + 1) is None
    fill(into.root, {"dynamo/code_state_train_0_.pkl": b"two"})
    assert save(team, into, base=lookup, now=NOW + 2) is not None
    _, again, _ = restored(team, tmp_path / "c")
    assert content(again.root) == {"dynamo/code_state_train_0_.pkl": b"two"}


def test_changed_code_is_saved_as_such(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b", wanted(code="2"))
    assert save(team, into, wanted(code="2"), lookup, now=NOW + 1) is not None
    assert team.find(wanted(code="2")).level == "exact"
    assert len(archives(team)) == 1


def test_of_another_jobs_archive_only_what_was_used_is_kept(
    team: ArchiveStore, tmp_path: Path
) -> None:
    save(team, tree(tmp_path / "a", FILES), wanted(job="other"))
    lookup, into, _ = restored(team, tmp_path / "b")
    if not into.tracks_atime:
        pytest.skip("the file system does not note when a file is read")
    (into.root / "ab/x.py").read_bytes()
    fill(into.root, {"new": b"new"})
    manifest = save(team, into, base=lookup, now=NOW + 1)
    assert manifest is not None and {file.path for file in manifest.files} == {"ab/x.py", "new"}
    assert manifest.supersedes == () and len(archives(team)) == 2


def test_an_archive_in_use_is_renewed(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b")
    assert save(team, into, base=lookup, now=NOW + archive.REFRESH_DAYS * DAY - 1) is None
    manifest = save(team, into, base=lookup, now=NOW + archive.REFRESH_DAYS * DAY)
    assert manifest is not None and manifest.cold_s == 1.0
    assert len(archives(team)) == 1


def test_what_nobody_uses_goes(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b")
    if not into.tracks_atime:
        pytest.skip("the file system does not note when a file is read")
    (into.root / "ab/x.py").read_bytes()
    manifest = save(team, into, base=lookup, now=NOW + archive.MAX_UNUSED_DAYS * DAY)
    assert manifest is not None and len(manifest.files) == 3
    lookup, into, _ = restored(team, tmp_path / "c")
    (into.root / "ab/x.py").read_bytes()
    late = save(team, into, base=lookup, now=NOW + (archive.MAX_UNUSED_DAYS + 8) * DAY)
    assert late is not None and [file.path for file in late.files] == ["ab/x.py"]
    assert late.supersedes == (manifest.id,)


def test_an_archive_has_a_largest_size(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 2500)
    manifest = save(
        team, tree(tmp_path / "a", {"a": bytes(1000), "b": bytes(5000), "c": bytes(1000)})
    )
    assert manifest is not None and [file.path for file in manifest.files] == ["a", "c"]


def test_nothing_is_nothing_to_save(team: ArchiveStore, tmp_path: Path) -> None:
    assert save(team, tree(tmp_path / "a", {"half.so": b"\x7fELF"})) is None
    assert save(team, tree(tmp_path / "b")) is None
    assert archives(team) == []


def test_chunks_that_were_cleared_away_meanwhile_are_written_again(
    team: ArchiveStore, tmp_path: Path
) -> None:
    """A long job: its archive was superseded by that of another run and then deleted."""
    large = {
        "a": bytes(chunks.TARGET_BYTES + 1),
        "b": b"b" * (chunks.TARGET_BYTES + 1),
    }  # chunks of their own
    save(team, tree(tmp_path / "a", large))
    lookup, into, _ = restored(team, tmp_path / "b")
    for path in (*archives(team), *root(team).glob("chunks/*/*")):
        path.unlink()
    fill(into.root, {"new": b"new"})
    save(team, into, base=lookup, now=NOW + 1)
    assert content(restored(team, tmp_path / "c")[1].root) == {**large, "new": b"new"}


def test_a_chunk_that_cannot_be_written_leaves_no_manifest(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = team.place.write

    def full(name: str, body: bytes) -> None:
        if name.startswith("chunks/"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, body)

    monkeypatch.setattr(team.place, "write", full)
    with pytest.raises(OSError) as error:
        save(team, tree(tmp_path / "a", FILES))
    assert error.value.errno == errno.ENOSPC
    assert team.find(wanted()).level == "miss" and archives(team) == []


def test_the_manifest_comes_last_and_the_old_one_goes_after_it(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at any point must leave a consistent store."""
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b")
    done: list[str] = []
    write, delete = team.place.write, team.place.delete
    monkeypatch.setattr(
        team.place, "write", lambda name, body: (write(name, body), done.append(f"+{name[:4]}"))
    )
    monkeypatch.setattr(
        team.place, "delete", lambda name: (delete(name), done.append(f"-{name[:4]}"))
    )
    fill(into.root, {"new": os.urandom(10)})
    save(team, into, base=lookup, now=NOW + 1)
    assert done[-3:] == ["+mach", "+arch", "-arch"]
    assert set(done[:-3]) == {"+chun"}


@pytest.mark.parametrize("after", range(6))
def test_killed_at_any_write_the_store_is_whole(
    team: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    save(team, tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(team, tmp_path / "b")
    fill(into.root, {f"new/{n}": os.urandom(chunks.TARGET_BYTES) for n in range(3)})
    write, count = team.place.write, iter(range(100))

    def killed(name: str, body: bytes) -> None:
        if next(count) >= after:
            raise KeyboardInterrupt
        write(name, body)

    monkeypatch.setattr(team.place, "write", killed)
    if after < 5:
        with pytest.raises(KeyboardInterrupt):
            save(team, into, base=lookup, now=NOW + 1)
    else:
        save(team, into, base=lookup, now=NOW + 1)
    again, restored_, _ = restored(team, tmp_path / "c")
    assert again.level == "exact" and not again.refusals
    assert content(restored_.root).items() >= FILES.items()


# -- other stores -------------------------------------------------------------------------------


def test_an_archive_is_taken_over_under_another_key(team: ArchiveStore, tmp_path: Path) -> None:
    manifest = save(team, tree(tmp_path / "a", FILES))
    assert manifest is not None
    other = ArchiveStore(f"memory://{tmp_path.name}/other", signing.HmacKey(b"fedcba9876543210"))
    other.import_archive(manifest, team.read_chunk)
    assert content(restored(other, tmp_path / "b")[1].root) == FILES


def test_one_that_goes_is_gone(team: ArchiveStore, tmp_path: Path) -> None:
    save(team, tree(tmp_path / "a", FILES))
    (path,) = archives(team)
    path.unlink()
    with pytest.raises(ObjectMissing):
        team.read_manifest(str(path.relative_to(root(team))))


def test_a_public_key_reads_what_the_private_one_signed(tmp_path: Path) -> None:
    from tests.unit.storage.test_signing import pair

    private, public = map(signing.read_key, pair(tmp_path))
    save(ArchiveStore(str(tmp_path / "store"), private), tree(tmp_path / "a", FILES))
    lookup, into, _ = restored(ArchiveStore(str(tmp_path / "store"), public), tmp_path / "b")
    assert lookup.level == "exact" and content(into.root) == FILES


def test_the_facts_of_a_machine_lie_beside_its_archives(team: ArchiveStore, tmp_path: Path) -> None:
    manifest: Manifest | None = save(team, tree(tmp_path / "a", FILES))
    assert manifest is not None
    (path,) = root(team).glob("machines/*.json")
    assert path.stem == host_facts.compile_key(FACTS) and json.loads(path.read_text()) == FACTS
