"""A draft becomes a checkpoint at one instant, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store import commit as commits
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.store import Store
from headway.errors import SaveFailed, UsageError
from headway.storage import place as places
from headway.storage.place import FsspecPlace, open_place
from tests.support import has_code
from tests.unit.checkpoint.store.small_saves import items, metadata, save


@pytest.fixture(params=["folder", "memory", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{secrets.token_hex(8)}/store"
    for module in (commits, places):  # a disk, but through fsspec and without a rename
        monkeypatch.setattr(module, "open_place", lambda url: FsspecPlace(str(url)))
    for name in ("store.store", "store.cleanup", "format.rank_file"):
        monkeypatch.setattr(
            f"headway.checkpoint.{name}.open_place", lambda url: FsspecPlace(str(url))
        )
    return f"file://{tmp_path}/store"


def test_saved_listed_and_good(store: str) -> None:
    assert Store(store).checkpoints() == []
    assert Store(store).latest_valid().checkpoint is None
    saved = [save(store, step, f"id{step}", world=2, extra={"at": step}) for step in (5, 10, 7)]
    found = Store(store).checkpoints()
    assert found == saved[::-1], "the newest is the last one, not the furthest"
    assert found[0].manifest.extra == {"at": 7}
    assert [file.name for file in found[0].manifest.files] == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    ]
    there = open_place(store) if "memory" in store or "://" not in store else FsspecPlace(store)
    names = {*there.list_names(found[0].name)}
    assert names == {".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"}
    assert there.read("latest") == f"{found[0].name}\n".encode()
    assert Store(store).latest_valid("full").checkpoint == found[0]


def test_a_step_that_is_saved_again(store: str) -> None:
    save(store, 5, "first")
    again = save(store, 5, "second")
    assert Store(store).checkpoints() == [again]
    assert Store(store).latest_valid("full").checkpoint == again


def test_it_is_not_there_before_all_parts_are(store: str) -> None:
    with Draft(store, 5, "id", 3) as draft:
        write_part(draft.folder, 1, items("id", 1))
        with pytest.raises(SaveFailed, check=has_code("parts-missing")) as raised:
            commit(draft, metadata)
        assert raised.value.fields["ranks"] == [0, 2]
        assert Store(store).checkpoints() == []
        assert Store(store).latest_valid().notes == ()
        write_part(draft.folder, 0, items("id", 0))
        write_part(draft.folder, 2, items("id", 2))
        commit(draft, metadata)
    assert [one.step for one in Store(store).checkpoints()] == [5]


def test_a_part_whose_file_is_not_whole_is_refused(tmp_path: Path) -> None:
    with Draft(tmp_path, 5, "id", 1) as draft:
        write_part(draft.folder, 0, items("id", 0))
        os.truncate(f"{draft.folder}/__0_0.distcp", 10)
        with pytest.raises(SaveFailed, check=has_code("size-mismatch")) as raised:
            commit(draft, metadata)
        assert raised.value.fields == {"rank": 0, "size": 10}
        os.unlink(f"{draft.folder}/__0_0.distcp")
        with pytest.raises(SaveFailed, check=has_code("size-mismatch")) as raised:
            commit(draft, metadata)
        assert raised.value.fields == {"rank": 0, "size": 0}


def test_a_delta_of_nothing_is_refused(store: str) -> None:
    with pytest.raises(SaveFailed, check=has_code("parent-missing")) as raised:
        save(store, 5, "delta", parent="full")
    assert raised.value.fields["parent"] == "full"
    assert Store(store).checkpoints() == []


def test_the_note_of_a_rank_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Draft(tmp_path, 5, "id", 2) as draft:
        write_part(draft.folder, 1, items("id", 1))
        (first,) = draft.parts()
        write_part(draft.folder, 0, items("id", 0))
        read: list[str] = []
        real = draft.place.read
        monkeypatch.setattr(draft.place, "read", lambda name: read.append(name) or real(name))
        assert [part.rank for part in draft.parts()] == [0, 1] and draft.parts()[1] is first
        assert read == [f"{draft.name}/part-0.json"]
        os.unlink(f"{draft.folder}/part-1.json")
        assert [part.rank for part in draft.parts()] == [0]


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "step-0000000005").mkdir()
    (tmp_path / "step-0000000005" / "precious").touch()
    with pytest.raises(SaveFailed, check=has_code("name-taken")):
        save(tmp_path, 5, "id")
    assert (tmp_path / "step-0000000005" / "precious").exists()


def test_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 5, "id1")
    (tmp_path / "step-0000000005" / "manifest.json").write_bytes(b"{}")
    again = save(tmp_path, 5, "id2")
    assert Store(tmp_path).checkpoints() == [again]


def test_a_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with (
        pytest.raises(SaveFailed, check=has_code("store-failed")) as raised,
        Draft(tmp_path, 5, "id", 1),
    ):
        pass
    assert raised.value.fields["errno"] == errno.EROFS


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failing_disk_is_told_of(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save(tmp_path, 5, "old")
    with Draft(tmp_path, 5, "new", 1) as draft:
        write_part(draft.folder, 0, items("new", 0))

        def fail(*args: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(SaveFailed, check=has_code("store-failed")) as raised:
                commit(draft, metadata)
        assert raised.value.fields["errno"] == errno.EIO
        assert Store(tmp_path).latest_valid("full").checkpoint == old
        commit(draft, metadata)
    assert Store(tmp_path).latest_valid().checkpoint != old


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda url: Draft(url, -1, "id", 1), "step-out-of-range"),
        (lambda url: Draft(url, 10**10, "id", 1), "step-out-of-range"),
        (lambda url: Draft(url, 1, "../x", 1), "save-id-invalid"),
        (lambda url: Draft(url, 1, "id", 0), "world-size-invalid"),
        (lambda url: save(url, 1, "id", extra={"a": object()}), "extra-not-json"),
        (lambda url: Draft(f"{url}/file", 1, "id", 1), "store-is-a-file"),
    ],
)
def test_wrong_use(call: Callable[[Path], object], code: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, check=has_code(code)):
        call(tmp_path)


JOB = """
import sys
from headway.checkpoint.store.cleanup import Policy, retain
from headway.checkpoint.store.cleanup import sweep
from tests.unit.checkpoint.store.small_saves import save

store, name = sys.argv[1:]
for step in range(20):
    save(store, step // 2, f"{name}{step}")
    sweep(store)
    retain(store, Policy(last=3))
"""


@pytest.mark.timeout(90)
def test_two_jobs_on_one_store(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path), name], stderr=subprocess.PIPE)
        for name in ("a", "b")
    ]
    assert [job.communicate(timeout=80)[1] for job in jobs] == [b"", b""]
    assert [job.returncode for job in jobs] == [0, 0]
    found = Store(tmp_path).latest_valid("full")
    assert found.notes == () and found.checkpoint is not None
    assert found.checkpoint.manifest.save_id in ("a19", "b19")
    assert found.checkpoint.manifest.sequence == 40
    assert len(Store(tmp_path).checkpoints()) <= 3
