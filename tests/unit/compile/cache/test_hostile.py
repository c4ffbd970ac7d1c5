"""Damaged and malicious archives: a miss with a reason, without any other effect."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.compile.cache import cleanup, manifest
from headway.compile.cache.archive import ArchiveStore, CacheLookup
from headway.compile.cache.folder import CacheFolder
from headway.compile.precompile import guards as precompile_guards
from headway.errors import Reason
from headway.storage import chunks, signing
from tests.mutations import altered, bent
from tests.unit.compile.cache.sample_archives import content, library, save, tree, wanted

FILES = {"ab/x.so": library(), "ab/x.py": b"print()", "dynamo/k/headway-guards.json": b"[]"}


class Attacked:
    """A store of this user that was tampered with; files of an own folder are parsed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ArchiveStore(str(folder / "store"))
        save(self.store, tree(folder / "a", FILES))
        (self.manifest,) = (folder / "store").glob("archives/*/*/*")
        self.plain = self._plain()
        self.files = [archive for archive in (folder / "store").rglob("*") if archive.is_file()]
        self.whole = {archive: archive.read_bytes() for archive in self.files}
        self.count = 0

    def _plain(self) -> Any:
        body = signing.unseal(self.manifest.read_bytes(), None)
        return json.loads(chunks.unpack_chunk(body[8:], int.from_bytes(body[:8], "big")))

    def look(self) -> CacheLookup:
        """Every operation on a store, whatever its content."""
        self.count += 1
        into = CacheFolder(self.folder / str(self.count))
        lookup, files = self.store.restore(self.store.find(wanted()), into)
        assert len(content(into.root)) == files
        assert all(isinstance(why, Reason) and why.code for why in lookup.refusals)
        for shelved in cleanup.list_archives(self.store):
            assert shelved.manifest is not None or shelved.reason.code
            cleanup.verify_archive(self.store, shelved)
            assert shelved.id.isprintable()
        cleanup.collect_garbage(self.store, max_size=0, max_age_s=0, dry_run=True)
        return lookup

    def heal(self) -> None:
        for path, whole in self.whole.items():
            path.write_bytes(whole)

    def seal(self, document: Any) -> None:
        """Store a manifest as the owner would write it."""
        plain = json.dumps(document).encode()
        body = len(plain).to_bytes(8, "big") + chunks.pack_chunk(plain)
        self.manifest.write_bytes(signing.seal(body, None))


def variants(attacked: Attacked, count: int) -> Iterator[int]:
    chance = random.Random(count)
    for number in range(count):
        if number % 2:
            path = chance.choice(attacked.files)
            path.write_bytes(bent(attacked.whole[path], chance))
        else:
            attacked.seal(altered(attacked.plain, chance))
        yield number
        attacked.heal()


def check(folder: Path, count: int) -> None:
    outside = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    attacked = Attacked(folder)
    levels = set()
    for _ in variants(attacked, count):
        levels.add(attacked.look().level)
    assert levels == {"exact", "miss", "job"} or count < 1000
    assert attacked.look().level == "exact", "nothing is left of it"
    there = {path.name for path in folder.iterdir()}
    assert there == {"store", "a", *map(str, range(1, attacked.count + 1))} | {
        path.name for path in outside
    }


def test_damaged_archives(tmp_path: Path) -> None:
    check(tmp_path, 60)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_damaged_archives(tmp_path: Path) -> None:
    check(tmp_path, 3000)


@pytest.mark.parametrize("size", [1 << 20, 1 << 26])
def test_a_chunk_that_grows_without_end(tmp_path: Path, size: int) -> None:
    attacked = Attacked(tmp_path)
    (chunk,) = (path for path in attacked.files if path.parent.parent.name == "chunks")
    packer = zlib.compressobj(9)
    piece = bytes(1 << 20)
    bomb = b"".join([packer.compress(piece) for _ in range(size >> 20)]) + packer.flush()
    chunk.write_bytes(chunks.ZLIB + bomb)
    assert attacked.look().level == "miss"
    chunk.write_bytes(chunks.ZLIB + bomb[: attacked.plain["chunks"][0][1]])
    assert attacked.look().level == "miss"


GUARDS = json.dumps([["__import__('pathlib').Path({!r}).write_text('ran')", __name__, ""]])


@pytest.mark.parametrize("way", ["written by others", "unsigned", "signed by another", "no key"])
def test_guards_of_an_archive_that_is_not_trusted_are_not_evaluated(
    tmp_path: Path, way: str
) -> None:
    """They are expressions: only archives that are trusted may execute code."""
    key = signing.HmacKey(b"0123456789abcdef")
    mine = signing.HmacKey(b"fedcba9876543210")
    ran = tmp_path / "ran"
    guards = GUARDS.replace("{!r}", repr(str(ran)))
    files = FILES | {"dynamo/k/headway-guards.json": guards.encode()}
    url = f"memory://{tmp_path.name}" if way == "no key" else str(tmp_path / "store")
    save(
        ArchiveStore(url, key if way == "signed by another" else None), tree(tmp_path / "a", files)
    )
    if way == "written by others":
        for path in (tmp_path / "store").rglob("*"):
            path.chmod(0o777 if path.is_dir() else 0o666)
    store = ArchiveStore(url, None if way in ("written by others", "no key") else mine)
    into = CacheFolder(tmp_path / "b")
    lookup, count = store.restore(store.find(wanted()), into)
    assert (lookup.level, count, content(into.root)) == ("miss", 0, {})
    assert lookup.refusals and all(why.code for why in lookup.refusals)
    assert precompile_guards.mismatch_reason(str(into.root / "dynamo/k"), check)
    assert not ran.exists()
    assert precompile_guards.mismatch_reason(str(tmp_path / "a/dynamo/k"), check)
    assert ran.exists(), "of an archive that is trusted they are"


def test_a_list_of_files_is_no_larger_than_it_says(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path)
    body = (manifest.MAX_MANIFEST_BYTES + 1).to_bytes(8, "big") + chunks.pack_chunk(b"{}")
    attacked.manifest.write_bytes(signing.seal(body, None))
    assert attacked.look().refusals[0].code == "archive-too-large"
