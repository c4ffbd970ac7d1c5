"""Objects in folders and behind URLs: atomic writes, and refusal of anything else."""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.storage.chunks import DamagedData
from headway.storage.object_places import (
    DRAFTS,
    FolderObjectPlace,
    ObjectMissing,
    ObjectPlace,
    RemoteObjectPlace,
    open_object_place,
)
from headway.storage.signing import Untrusted
from tests.support import has_code

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    if request.param == "folder":
        return open_object_place(str(tmp_path / "store"))
    return open_object_place(f"memory://{secrets.token_hex(8)}/store")


def test_written_read_listed_and_taken_away(store: ObjectPlace) -> None:
    assert list(store.entries("chunks")) == []
    store.write("chunks/ab/abc", b"one")
    store.write("chunks/cd/cde", b"three")
    store.write("chunks/ab/abc", b"other")
    store.write("machines/x.json", b"{}")
    assert store.read("chunks/ab/abc", 100) == b"other"
    entries = {name: size for name, size, _ in store.entries("chunks")}
    assert entries == {"chunks/ab/abc": 5, "chunks/cd/cde": 5}
    assert [name for name, _, _ in store.entries("chunks/cd/")] == ["chunks/cd/cde"]
    store.delete("chunks/ab/abc")
    store.delete("chunks/ab/abc")
    with pytest.raises(ObjectMissing):
        store.read("chunks/ab/abc", 100)
    assert [name for name, _, _ in store.entries("chunks")] == ["chunks/cd/cde"]


def test_the_time_of_change_is_told(store: ObjectPlace) -> None:
    store.write("chunks/ab/abc", b"one")
    ((_, _, changed),) = store.entries("chunks")
    assert abs(changed - time.time()) < 100


def test_no_more_is_read_than_allowed(store: ObjectPlace) -> None:
    store.write("chunks/ab/abc", bytes(1000))
    assert len(store.read("chunks/ab/abc", 1000)) == 1000
    with pytest.raises(DamagedData, check=has_code("archive-too-large")):
        store.read("chunks/ab/abc", 999)


def test_one_object_is_written_by_many_at_once(store: ObjectPlace) -> None:
    contents = [bytes([number]) * 5000 for number in range(8)]
    threads = [threading.Thread(target=store.write, args=("a/b", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("a/b", 5000) in contents


def test_urls_name_their_places(tmp_path: Path) -> None:
    assert isinstance(open_object_place("memory://x"), RemoteObjectPlace)
    folder = open_object_place(f"file://{tmp_path}")
    assert isinstance(folder, FolderObjectPlace) and folder.root == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, check=has_code("store-is-a-file")):
        open_object_place(str(tmp_path / "file"))
    with pytest.raises(UsageError, check=has_code("url-unusable")):
        open_object_place("nothing://x")


def test_what_is_unsigned_is_not_read_through_a_url() -> None:
    remote = open_object_place("memory://unsigned")
    remote.write("a/b", b"x")
    assert remote.untrusted_reason().code == "store-not-trusted"
    with pytest.raises(Untrusted, check=has_code("store-not-trusted")):
        remote.read("a/b", 10, owned_only=True)


# -- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_store_that_we_make_is_one_that_we_trust(tmp_path: Path, umask: int) -> None:
    store = FolderObjectPlace(tmp_path / "new" / "store")
    (tmp_path / "new").mkdir()
    before = os.umask(umask)
    try:
        store.write("archives/key/job/id", b"x")
        store.write("chunks/ab/abc", b"x")
    finally:
        os.umask(before)
    assert store.untrusted_reason() == ""
    assert store.read("archives/key/job/id", 10, owned_only=True) == b"x"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2770])
def test_what_is_in_a_store_is_as_open_as_the_store(tmp_path: Path, mode: int) -> None:
    """Members of a group that share a folder can write into folders of each other."""
    tmp_path.chmod(mode)
    FolderObjectPlace(tmp_path).write("archives/key/job/id", b"x")
    for path in (tmp_path / "archives", tmp_path / "archives/key/job", tmp_path / DRAFTS):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    file = tmp_path / "archives/key/job/id"
    assert stat.S_IMODE(file.stat().st_mode) == mode & 0o666


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_an_object_that_others_can_change_is_not_ours(tmp_path: Path, mode: int) -> None:
    store = FolderObjectPlace(tmp_path / "store")
    store.write("archives/key/job/id", b"x")
    os.chmod(tmp_path / "store/archives/key/job/id", mode)
    assert store.read("archives/key/job/id", 10) == b"x"
    with pytest.raises(Untrusted, check=has_code("writable-by-others")):
        store.read("archives/key/job/id", 10, owned_only=True)


@needs_root
def test_an_object_of_another_user_is_not_ours(tmp_path: Path) -> None:
    """The file is put there after the check of the folder."""
    store = FolderObjectPlace(tmp_path / "store")
    store.write("chunks/ab/abc", b"x")
    os.chown(tmp_path / "store/chunks/ab/abc", 12345, 12345)
    with pytest.raises(Untrusted, check=has_code("owned-by-another")):
        store.read("chunks/ab/abc", 10, owned_only=True)


@pytest.mark.timeout(20)
def test_nothing_but_plain_files_is_an_object(tmp_path: Path) -> None:
    store = FolderObjectPlace(tmp_path / "store")
    store.write("a/file", b"x")
    os.mkfifo(tmp_path / "store/a/pipe")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "store/a/link").symlink_to(tmp_path / "secret")
    (tmp_path / "store/a/folder").mkdir()
    assert [name for name, _, _ in store.entries("a")] == ["a/file"]
    for name in ("a/pipe", "a/folder", "a/file/below", "nothing"):
        with pytest.raises(ObjectMissing):
            store.read(name, 10)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = FolderObjectPlace(tmp_path / "store")
    (tmp_path / "store/a/b").mkdir(parents=True)
    with pytest.raises(OSError):
        store.write("a/b", b"x")
    assert list((tmp_path / "store" / DRAFTS).iterdir()) == []


def test_a_store_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scandir(path: object) -> object:
        raise PermissionError(13, "Permission denied", path)

    store = FolderObjectPlace(tmp_path)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        list(store.entries("archives"))


def test_a_folder_that_others_can_write_is_told(tmp_path: Path) -> None:
    store = FolderObjectPlace(tmp_path / "store")
    store.write("chunks/ab/abc", b"x")
    (tmp_path / "store/chunks").chmod(0o777)
    assert store.untrusted_reason().code == "writable-by-others"
    assert str(tmp_path / "store/chunks") in store.untrusted_reason()
