"""`headway cache`: output and exit code of each action."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from headway import __version__
from headway.compile.cache.archive import ArchiveStore
from headway.compile.cache.cleanup import list_archives
from headway.storage.signing import read_key
from tests.support import Golden, cli, codes
from tests.unit.compile.cache.sample_archives import NOW, content, library, save, tree, wanted

FILES = {"ab/x.so": library(3000), "ab/x.py": b"print()", "fxgraph/k/v": b"graph" * 100}
Cache = Callable[..., CompletedProcess[str]]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """The command in a folder with two keys and a store with one archive."""
    for name in ("key", "other.key"):
        (tmp_path / name).write_bytes(f"the key of a team in {name}".encode())
        (tmp_path / name).chmod(0o600)
    save(store(tmp_path), tree(tmp_path / "tree", FILES), now=NOW)

    def run(*words: str, key: str = "key") -> CompletedProcess[str]:
        return cli("cache", *words, "--cache-key", key, cwd=tmp_path)

    return run


def store(folder: Path) -> ArchiveStore:
    return ArchiveStore(str(folder / "store"), read_key(str(folder / "key")))


def archive(folder: Path) -> str:
    (archive_id,) = list_archives(store(folder))
    return archive_id.id


def damage(folder: Path) -> None:
    for path in (folder / "store/chunks").rglob("*"):
        if path.is_file():
            path.unlink()


def test_what_each_action_prints(cache: Cache, utc: None, tmp_path: Path, golden: Golden) -> None:
    archive_id = archive(tmp_path)
    (chunk,) = (p for p in (tmp_path / "store/chunks").rglob("*") if p.is_file())
    pages = []

    def show(*words: str, code: int = 0, key: str = "key") -> None:
        done = cache(*words, key=key)
        assert done.returncode == code and not done.stderr
        pages.append(f"$ headway cache {' '.join(words)} --cache-key {key}\n{done.stdout}")

    show("list", "store")
    show("show", "store", archive_id)
    show("verify", "store")
    show("verify", "store", code=1, key="other.key")
    show("stats", "store")
    show("pull", "store", archive_id, "folder")
    show("push", "store", "theirs", "--target-key", "other.key")
    show("gc", "store", "--max-size", "0", "--dry-run")
    damage(tmp_path)
    show("verify", "store", code=1)
    show("push", "store", "again")
    show("gc", "store", "--max-size", "0", key="other.key")
    show("list", "store", key="other.key")
    show("gc", "store", "--max-size", "0")
    show("list", "store")
    text = "\n".join(pages)
    varying = {archive_id: "ARCHIVE", chunk.name[:12]: "CHUNK", os.uname().nodename: "HOST"}
    for value, name in (varying | {__version__: "VERSION"}).items():
        text = text.replace(value, name)
    golden("cache.txt", text)


def test_what_can_be_read_by_a_program(cache: Cache, tmp_path: Path) -> None:
    archive_id = archive(tmp_path)
    (row,) = json.loads(cache("list", "store", "--json").stdout)
    size = sum(map(len, FILES.values()))
    assert (row["id"], row["why"], row["files"], row["bytes"]) == (archive_id, "", 3, size)
    shown = json.loads(cache("show", "store", archive_id[:6], "--json").stdout)
    assert shown["content"] == {path: len(body) for path, body in FILES.items()}
    stats = json.loads(cache("stats", "store", "--json").stdout)
    assert stats["archives"] == 1 and stats["bytes_in_archives"] == size
    assert 0 < stats["bytes_stored"] < size


def test_an_archive_goes_to_a_folder_and_to_another_store(cache: Cache, tmp_path: Path) -> None:
    assert cache("pull", "store", archive(tmp_path), "folder").returncode == 0
    assert content(tmp_path / "folder") == FILES
    assert cache("push", "store", "theirs", "--target-key", "other.key").returncode == 0
    assert cache("verify", "theirs", key="other.key").returncode == 0
    assert cache("verify", "theirs").returncode == 1


def test_old_archives_are_cleared_away(cache: Cache, tmp_path: Path) -> None:
    save(store(tmp_path), tree(tmp_path / "tree", FILES), wanted("other"), now=NOW + 1)
    assert cache("gc", "store", "--max-size", "0", "--dry-run").returncode == 0
    assert len(json.loads(cache("list", "store", "--json").stdout)) == 2
    assert cache("gc", "store", "--max-age", "1d").returncode == 0
    assert json.loads(cache("list", "store", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("show", "store"), "archive-not-given"),
        (("show", "store", "zzz"), "archive-not-found"),
        (("pull", "store", "zzz"), "cache-pull-arguments"),
        (("push", "store"), "cache-push-arguments"),
        (("gc", "store", "--max-size", "many"), "value-malformed"),
        (("gc", "store", "--max-age", "5x"), "value-malformed"),
        (("list", "key"), "store-is-a-file"),
        (("list", "store", "--cache-key", "none"), "key-not-readable"),
    ],
)
def test_wrong_use_is_one_sentence(cache: Cache, words: tuple[str, ...], code: str) -> None:
    done = cache(*words) if "--cache-key" not in words else cache(*words[:-2], key=words[-1])
    assert (done.returncode, codes(done.stderr)) == (2, [code])


def test_what_is_damaged_is_not_pulled(cache: Cache, tmp_path: Path) -> None:
    damage(tmp_path)
    assert cache("verify", "store").returncode == 1
    done = cache("pull", "store", archive(tmp_path), "folder")
    assert (done.returncode, codes(done.stderr)) == (2, ["archive-unusable"])


def test_nothing_is_pulled_from_a_folder_that_others_can_write(
    cache: Cache, tmp_path: Path
) -> None:
    own = ArchiveStore(str(tmp_path / "own"))
    save(own, tree(tmp_path / "tree", FILES))
    (archive_id,) = list_archives(own)
    (tmp_path / "own/chunks").chmod(0o777)
    done = cache("pull", "own", archive_id.id, "folder", key="")
    assert (done.returncode, codes(done.stderr)) == (2, ["archive-key-missing"])
    assert not (tmp_path / "folder").exists()
