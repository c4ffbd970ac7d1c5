"""Snapshots are there whole or not at all, whatever is killed and wherever."""

from __future__ import annotations

import contextlib
import errno
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.checkpoint.store import disk
from headway.errors import SaveFailed, SnapshotDamaged, UsageError
from headway.publish.snapshot import File, Made, Manifest, Snapshot
from headway.publish.store import Store
from tests.unit.checkpoint.store.crashing import Crash, Disk


def publish(
    store: Store, anchor: str, *, keep: int = 3, shared: str = "code", order: int | None = None
) -> Snapshot:
    """A snapshot of two files, one of which others have too."""
    with store.publishing():
        files = {
            name: store.add(lambda content=content: [content.encode()], f".{name}")  # type: ignore[misc]
            for name, content in (("weights", f"weights of {anchor}"), ("pt2", shared))
        }
        manifest = Manifest(
            number=0,
            made=0.0,
            current=True,
            anchor={"key": anchor, "path": anchor, "step": 1, "order": ["", order or 0]},
            recipe="",
            files=files,
            targets={"aoti": Made(("weights", "pt2"))},
        )
        return store.commit(manifest, anchor, keep, orderly=order is not None)


def content(store: Store, one: Snapshot, folder: Path) -> list[str]:
    checked = (store.checked(file, name, folder) for name, file in one.manifest.files.items())
    return [path.read_text() for path in checked]


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(
        tmp_path / "s" if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    )


def test_the_newest_serves_and_files_are_shared(store: Store, tmp_path: Path) -> None:
    assert store.snapshots() == [] and store.latest() is None
    with pytest.raises(UsageError, match="no snapshot serves"):
        store.snapshot()
    made = [publish(store, anchor) for anchor in "abcd"]
    assert store.snapshots() == made[1:], "three are kept"
    assert store.latest() == made[3] == store.snapshot("latest") == store.snapshot("4")
    assert content(store, made[3], tmp_path) == ["weights of d", "code"]
    assert store.noted("a") == {"snapshot": made[0].name}
    assert store.noted("e") == {}
    with store.publishing():
        assert store.sweep() == [] or not store.place.renames
    store.sweep(now=10**12)
    files = {file.stored for one in made[1:] for file in one.manifest.files.values()}
    assert {f"files/{name}" for name in store.place.names("files")} == files
    assert len(files) == 4


def test_an_older_one_serves_again(store: Store) -> None:
    made = [publish(store, anchor) for anchor in "abc"]
    assert store.rollback() == made[1] == store.latest()
    assert store.rollback() == made[0] == store.latest()
    with pytest.raises(UsageError, match="there is no snapshot before"):
        store.rollback()
    assert store.rollback("3") == made[2]
    store.rollback("1")
    store.sweep()
    assert store.latest() == made[0], "what was rolled back does not come back by itself"
    after = publish(store, "d")
    assert after.manifest.number == 4 and store.latest() == after
    store.rollback("2")
    publish(store, "e", keep=1)
    store.rollback("5")
    with pytest.raises(UsageError, match="there is no snapshot 7 in"):
        store.rollback("7")


def test_one_that_is_not_to_serve(store: Store) -> None:
    publish(store, "a", order=1)
    second = publish(store, "b", order=3)
    third = publish(store, "c", order=2)
    assert store.latest() == second and not third.manifest.current
    assert len(store.snapshots()) == 3
    assert publish(store, "e") == store.latest(), "told to serve"


def test_what_was_changed_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = publish(store, "a")
    file = tmp_path / one.manifest.files["weights"].stored
    file.write_bytes(file.read_bytes().replace(b"a", b"b"))
    with pytest.raises(SnapshotDamaged, match="weights was changed in"):
        content(store, one, tmp_path)
    publish(store, "a")
    assert content(store, one, tmp_path)[0] == "weights of a", "it was written anew"
    manifest = tmp_path / f"snapshots/{one.name}.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step": 1', b'"step": 2'))
    with pytest.raises(SnapshotDamaged, match="was changed"):
        store.snapshot(one.name)
    (tmp_path / "latest").write_text("{}")
    with pytest.raises(SnapshotDamaged, match="latest was changed"):
        store.latest()


def test_compiled_code_is_remembered_while_a_snapshot_has_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = publish(store, "a")
    code = one.manifest.files["pt2"]
    store.keep_package("graph", code)
    assert store.package("graph") == code and store.package("other") is None
    publish(store, "b", keep=1, shared="other code")
    store.sweep()
    assert store.package("graph") is None
    assert not (tmp_path / "packages/graph.json").exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    one = publish(store, "a")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(SaveFailed, match=r"cannot be written to .*: No space left on device"):
        publish(store, "b")
    monkeypatch.undo()
    assert store.latest() == one
    store.sweep()
    assert len(store.place.names("files")) == 2


def crashes() -> Iterator[tuple[int, int | None]]:
    """After so many calls of the disk; the machine too, losing what a number decides."""
    for calls in range(70):
        yield calls, None
        yield calls, calls


def test_killed_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = set()
    for calls, power in crashes():
        drive = Disk()
        with pytest.MonkeyPatch.context() as patch:
            drive.install(patch)
            store = Store("/store")
            first = publish(store, "a")
            drive.left = calls
            done = None
            try:
                done = publish(store, "b")
            except Crash:
                if power is None:
                    drive.die()
                else:
                    drive.lose_power(random.Random(power))
            drive.left = -1
            # Before anything is cleared up, what serves is whole.
            latest = store.latest()
            assert latest is not None
            reached.add(latest.manifest.anchor["key"])
            assert _whole(drive, latest)
            if done is not None:
                assert latest == done
            store.sweep()
            latest = store.latest()
            assert latest is not None and _whole(drive, latest)
            assert latest.manifest.anchor["key"] == ("b" if store.noted("b") else "a")
            _only_what_is_needed(store)
            if not store.noted("b"):
                publish(store, "b")
            assert [one.manifest.anchor["key"] for one in store.snapshots()] == ["a", "b"]
            assert store.snapshots()[0] == first
    assert reached == {"a", "b"}


KILLED = """
import os, sys
from headway.checkpoint.store import disk
from headway.publish.store import Store
from tests.unit.publish.test_store import publish
left = int(sys.argv[2])
def counted(known):
    def call(*args, **more):
        global left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1
        return known(*args, **more)
    return call
for name in ("create", "write_at", "sync", "sync_folder", "rename", "lock"):
    setattr(disk, name, counted(getattr(disk, name)))
publish(Store(sys.argv[1]), sys.argv[3])
"""


def test_killed_for_real(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    publish(store, "0")
    chance = random.Random(5)
    ends = set()
    for life in range(1, 6):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "s"), str(chance.randrange(40))]
        done = subprocess.run([*command, str(life)], stderr=subprocess.PIPE, timeout=60)
        assert done.returncode in (0, -9), done.stderr
        ends.add(done.returncode)
        latest = store.snapshot()
        key = latest.manifest.anchor["key"]
        assert content(store, latest, tmp_path) == [f"weights of {key}", "code"]
        store.sweep()
        _only_what_is_needed(store)
    assert ends == {0, -9}


def _whole(drive: Disk, one: Snapshot) -> bool:
    wanted = {"weights": f"weights of {one.manifest.anchor['key']}", "pt2": "code"}
    files: dict[str, File] = dict(one.manifest.files)
    return {n: drive.read(f"/store/{f.stored}").decode() for n, f in files.items()} == wanted


def _only_what_is_needed(store: Store) -> None:
    needed = {file.stored for one in store.snapshots() for file in one.manifest.files.values()}
    assert {f"files/{name}" for name in store.place.names("files")} == needed
    for folder in ("", "snapshots", "packages", "anchors"):
        with contextlib.suppress(FileNotFoundError):
            assert not [name for name in store.place.names(folder) if name.startswith(".new-")]
