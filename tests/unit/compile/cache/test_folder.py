"""Cache folders: which files to archive, and which were used."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import time
from pathlib import Path

import pytest

from headway.compile.cache.folder import CacheFolder, is_complete_library
from headway.compile.cache.manifest import File, Manifest
from tests.unit.compile.cache import sample_archives
from tests.unit.compile.cache.sample_archives import TODAY, content, fill, library, manifest


def archive(files: dict[str, bytes], used: int = TODAY - 5) -> tuple[Manifest, list[bytes]]:
    rows = tuple(File(name, len(body), name.endswith(".so"), used) for name, body in files.items())
    return manifest(files=rows), [b"".join(files.values())]


@pytest.fixture
def reads(tmp_path: Path) -> None:
    if not CacheFolder(tmp_path / "reads").tracks_atime:
        pytest.skip("the file system does not note when a file is read")


def test_what_is_worth_keeping(tmp_path: Path) -> None:
    files = {"ab/x.py": b"1", "fxgraph/k/k/v": b"2", "triton/a/b.cubin": b"3", "x.so": library()}
    passed = {
        "locks/a.lock": b"",
        "ab/y.lock": b"",
        "ab/.123.tmp": b"",
        "ab/z.tmp": b"",
        "precompiled_headers/big.h.gch": b"",
        "ab/m.o": b"",
        "__pycache__/x.pyc": b"",
        "triton/tmp.pid_1/x": b"",
        ".hidden/x": b"",
        "odd\nname": b"",
    }
    folder = sample_archives.tree(tmp_path / "c", files | passed)
    (tmp_path / "c/link.py").symlink_to("/etc/passwd")
    (tmp_path / "c/out").symlink_to("/etc")
    os.mkfifo(tmp_path / "c/pipe")
    assert folder.files() == sorted(files)


def test_restored_as_it_was(tmp_path: Path) -> None:
    files = {"ab/x.so": library(), "ab/x.py": b"print()", "empty": b"", "ü/ö": b"x"}
    listing, stream = archive(files)
    folder = CacheFolder(tmp_path / "c")
    assert folder.restore(listing, stream) == 4
    assert content(folder.root) == files
    assert os.access(folder.root / "ab/x.so", os.X_OK) and not os.access(
        folder.root / "empty", os.X_OK
    )
    assert not any(folder.changed(name) for name in files)
    assert (folder.root.stat().st_mode & 0o777) == 0o700


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_chunks_need_not_end_where_files_do(tmp_path: Path, size: int) -> None:
    files = {f"d/{n}": bytes([n]) * n for n in range(10)}
    listing, (whole,) = archive(files)
    folder = CacheFolder(tmp_path / "c")
    folder.restore(listing, (whole[at : at + size] for at in range(0, len(whole), size)))
    assert content(folder.root) == files


def test_what_is_there_stays_and_counts_as_the_archives(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c", owned=False)
    fill(folder.root, {"a": b"mine"})
    os.utime(folder.root / "a", (1e9, 1e9))
    listing, stream = archive({"a": b"his", "b": b"new"})
    assert folder.restore(listing, stream) == 1
    assert content(folder.root) == {"a": b"mine", "b": b"new"}
    assert folder.files() == ["a", "b"]


def test_lists_of_triton_are_right_in_any_folder(tmp_path: Path) -> None:
    """Group files as Triton's FileCacheManager writes and reads them."""
    first = CacheFolder(tmp_path / "föö")
    group = {name: str(first.root / "triton/key" / name) for name in ("k.json", "k.cubin")}
    fill(first.root, {f"triton/key/{name}": b"x" for name in group})
    group_text = json.dumps({"child_paths": group}).encode()
    fill(first.root, {"triton/key/__grp__k.json": group_text})
    items = [item for name in first.files() if (item := first.read(name, TODAY))]
    assert not any(str(tmp_path).encode() in body for _, body in items)
    assert all(file.size == len(body) for file, body in items)
    second = CacheFolder(tmp_path / "bar")
    second.restore(manifest(files=tuple(file for file, _ in items)), [body for _, body in items])
    paths = json.loads((second.root / "triton/key/__grp__k.json").read_text())["child_paths"]
    assert paths == {name: str(second.root / "triton/key" / name) for name in group}
    assert all(map(os.path.exists, paths.values()))
    assert not any(map(second.changed, second.files()))


@pytest.mark.parametrize("how", ["open", "link"])
def test_a_folder_that_somebody_else_prepared_is_not_ours(tmp_path: Path, how: str) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    if how == "link":
        (tmp_path / "link").symlink_to(tmp_path / "theirs")
    folder = tmp_path / {"open": "theirs", "link": "link"}[how]
    with pytest.raises(PermissionError) as error:
        CacheFolder(folder)
    assert error.value.filename == str(folder)
    CacheFolder(tmp_path / "theirs", owned=False)


def test_all_or_nothing(tmp_path: Path) -> None:
    def breaks(body: bytes) -> object:
        yield body[:4]
        raise OSError("the store is gone")

    folder = sample_archives.tree(tmp_path / "c", {"b": b"mine"})
    listing, (whole,) = archive({"a": b"1", "b": b"2", "c": b"3", "d": b"4", "e": b"5"})
    with pytest.raises(OSError):
        folder.restore(listing, breaks(whole))  # type: ignore[arg-type]
    assert content(folder.root) == {"b": b"mine"}
    assert folder.restored == {}


def test_a_package_of_another_job_may_be_left_out(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    listing, stream = archive({"dynamo/x/entry": b"1", "ab/y": b"2"})
    assert folder.restore(listing, stream, lambda path: not path.startswith("dynamo/")) == 1
    assert content(folder.root) == {"ab/y": b"2"}
    assert set(folder.restored) == {"ab/y"}


@pytest.mark.usefixtures("reads")
def test_what_was_restored_and_not_read_is_unused(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    folder.restore(*archive({"read": b"1", "unread": b"2", "mapped.so": library(5000)}))
    (folder.root / "read").read_bytes()
    with open(folder.root / "mapped.so", "rb") as file:
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ).close()  # as a library is loaded
    fill(folder.root, {"new": b"3"})
    assert {name: folder.used(name) for name in folder.files()} == {
        "read": True,
        "unread": False,
        "mapped.so": True,
        "new": True,
    }
    days = {name: file.used for name in folder.files() if (file := folder.describe(name, TODAY))}
    assert days == {"read": TODAY, "unread": TODAY - 5, "mapped.so": TODAY, "new": TODAY}


@pytest.mark.usefixtures("reads")
def test_our_own_reading_is_no_use(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    folder.restore(*archive({"a": b"1"}))
    assert folder.read("a", TODAY) == (File("a", 1, False, TODAY - 5), b"1")
    assert not folder.used("a")


def test_where_reads_are_not_told_all_is_used(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    folder.tracks_atime = False
    folder.restore(*archive({"a": b"1"}))
    assert folder.used("a")
    described = folder.describe("a", TODAY)
    assert described is not None and described.used == TODAY


def test_in_a_folder_of_the_user_what_is_older_is_not_ours(tmp_path: Path) -> None:
    fill(tmp_path / "c", {"old": b"1"})
    os.utime(tmp_path / "c/old", (time.time() - 10, time.time() - 10))
    folder = CacheFolder(tmp_path / "c", owned=False)
    fill(folder.root, {"new": b"2"})
    assert folder.files() == ["new"]


def test_what_was_changed_since(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    folder.restore(*archive({"same": b"1", "profile.pkl": b"2"}))
    fill(folder.root, {"profile.pkl": b"3", "new": b"4"})
    assert [name for name in folder.files() if folder.changed(name)] == ["new", "profile.pkl"]
    for name in folder.files():
        folder.read(name, TODAY)
    assert not any(map(folder.changed, folder.files()))


def test_what_goes_away_meanwhile_is_left_out(tmp_path: Path) -> None:
    folder = sample_archives.tree(tmp_path / "c", {"a": b"1"})
    (folder.root / "a").unlink()
    assert folder.read("a", TODAY) is None and folder.describe("a", TODAY) is None
    assert not folder.used("a") and not folder.changed("a")


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = sample_archives.tree(tmp_path / "c")
    (folder.root / "a").symlink_to(tmp_path / "secret")
    assert folder.read("a", TODAY) is None


def test_a_library_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """torch would load any file with the right name and fail."""
    whole = library(5000)
    folder = sample_archives.tree(tmp_path / "c", {"whole.so": whole})
    assert folder.read("whole.so", TODAY) is not None
    for end in (0, 10, 64, 4000, 4999):
        fill(folder.root, {"half.so": whole[:end]})
        assert folder.read("half.so", TODAY) is None
    fill(folder.root, {"half.so": bytes(5000)})  # linkers write the beginning last
    assert folder.read("half.so", TODAY) is None


def test_libraries_that_a_killed_build_has_left_are_taken_away(tmp_path: Path) -> None:
    folder = sample_archives.tree(
        tmp_path / "c", {"whole.so": library(), "half.so": b"", "text.py": b""}
    )
    folder.remove_truncated()
    assert folder.files() == ["text.py", "whole.so"]


def test_a_real_library_is_whole_and_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int twice(int x) { return 2 * x; }\n")
    subprocess.run(["gcc", "-shared", "-o", "x.so", "x.c"], cwd=tmp_path, check=True, timeout=60)
    body = (tmp_path / "x.so").read_bytes()
    assert is_complete_library(body)
    assert not any(is_complete_library(body[:end]) for end in range(0, len(body), 97))
