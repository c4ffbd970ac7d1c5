"""Snapshots are there whole or not at all, whatever is killed and wherever."""

from __future__ import annotations

import errno
import random
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import SaveFailed, SnapshotDamaged, UsageError
from headway.publish.snapshot import Snapshot, SnapshotFile
from headway.publish.store import SnapshotStore
from headway.storage import disk, lease
from tests.support import has_code
from tests.unit.publish.snapshots import content, only_what_is_needed, publish
from tests.unit.storage.crashing_disk import Crash, Disk


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(
        tmp_path / "s" if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    )


def test_the_newest_serves_and_files_are_shared(store: SnapshotStore, tmp_path: Path) -> None:
    assert store.snapshots() == [] and store.latest() is None
    with pytest.raises(UsageError, check=has_code("no-snapshot-serves")):
        store.snapshot()
    snapshots = [publish(store, anchor) for anchor in "abcd"]
    assert store.snapshots() == snapshots[1:], "three are kept"
    assert store.latest() == snapshots[3] == store.snapshot("latest") == store.snapshot("4")
    assert content(store, snapshots[3], tmp_path) == ["weights of d", "code"]
    assert store.outcome_of("a") == {"snapshot": snapshots[0].name}
    assert store.outcome_of("e") == {}
    with store.sweep_blocked():
        assert store.sweep() == [] or not store.place.can_rename
    store.sweep(now=10**12)
    files = {file.stored for snapshot in snapshots[1:] for file in snapshot.manifest.files.values()}
    assert {f"files/{name}" for name in store.place.list_names("files")} == files
    assert len(files) == 4


def test_an_older_one_serves_again(store: SnapshotStore) -> None:
    snapshots = [publish(store, anchor) for anchor in "abc"]
    assert store.rollback() == snapshots[1] == store.latest()
    assert store.rollback() == snapshots[0] == store.latest()
    with pytest.raises(UsageError, check=has_code("no-earlier-snapshot")):
        store.rollback()
    assert store.rollback("3") == snapshots[2]
    store.rollback("1")
    store.sweep()
    assert store.latest() == snapshots[0], "what was rolled back does not come back by itself"
    after = publish(store, "d")
    assert after.manifest.number == 4 and store.latest() == after
    store.rollback("2")
    publish(store, "e", keep=1)
    store.rollback("5")
    with pytest.raises(UsageError, check=has_code("snapshot-not-found")):
        store.rollback("7")


def test_one_that_is_not_to_serve(store: SnapshotStore) -> None:
    publish(store, "a", order=1)
    second = publish(store, "b", order=3)
    third = publish(store, "c", order=2)
    assert store.latest() == second and not third.manifest.current
    assert len(store.snapshots()) == 3
    assert publish(store, "e") == store.latest(), "told to serve"


@pytest.mark.parametrize("change", ["publish", "rollback"])
def test_workers_without_locks_wait_for_each_other(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker with the older anchor is slow to say what serves: the newer one serves."""
    url = f"memory://{secrets.token_hex(8)}"
    slow, quick = SnapshotStore(url), SnapshotStore(url)
    publish(slow, "a", order=1)
    waits = threading.Event()

    def other() -> None:
        publish(quick, "c", order=3) if change == "publish" else quick.rollback()
        waits.set()

    thread = threading.Thread(target=other)

    def point(snapshot: Snapshot) -> None:
        thread.start()
        assert waits.wait(10)
        SnapshotStore._update_pointer(slow, snapshot)

    def sleep(seconds: float) -> None:
        if seconds:
            waits.set()
            threading.Event().wait(0.001)

    monkeypatch.setattr(lease.time, "sleep", sleep)
    monkeypatch.setattr(slow, "_update_pointer", point)
    publish(slow, "b", order=2)
    thread.join()
    serving = slow.latest()
    assert serving is not None
    assert serving.manifest.anchor["key"] == ("c" if change == "publish" else "a")
    numbers = [snapshot.manifest.number for snapshot in slow.snapshots()]
    assert len(set(numbers)) == len(numbers)


def test_what_was_changed_is_refused(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    snapshot = publish(store, "a")
    file = tmp_path / snapshot.manifest.files["weights"].stored
    file.write_bytes(file.read_bytes().replace(b"a", b"b"))
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")):
        content(store, snapshot, tmp_path)
    publish(store, "a")
    assert content(store, snapshot, tmp_path)[0] == "weights of a", "it was written anew"
    manifest = tmp_path / f"snapshots/{snapshot.name}.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step": 1', b'"step": 2'))
    with pytest.raises(SnapshotDamaged, check=has_code("snapshot-manifest-changed")):
        store.snapshot(snapshot.name)
    (tmp_path / "latest").write_text("{}")
    with pytest.raises(SnapshotDamaged, check=has_code("latest-changed")):
        store.latest()


def test_compiled_code_is_remembered_while_a_snapshot_has_it(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    snapshot = publish(store, "a")
    code = snapshot.manifest.files["pt2"]
    store.record_package("graph", code)
    assert store.find_package("graph") == code and store.find_package("other") is None
    publish(store, "b", keep=1, shared="other code")
    store.sweep()
    assert store.find_package("graph") is None
    assert not (tmp_path / "packages/graph.json").exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore(tmp_path)
    snapshot = publish(store, "a")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "write_at", full)
    with pytest.raises(SaveFailed, check=has_code("store-failed")) as error:
        publish(store, "b")
    assert error.value.fields["errno"] == errno.ENOSPC
    monkeypatch.undo()
    assert store.latest() == snapshot
    store.sweep()
    assert len(store.place.list_names("files")) == 2


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
            store = SnapshotStore("/store")
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
            assert latest.manifest.anchor["key"] == ("b" if store.outcome_of("b") else "a")
            only_what_is_needed(store)
            if not store.outcome_of("b"):
                publish(store, "b")
            assert [snapshot.manifest.anchor["key"] for snapshot in store.snapshots()] == ["a", "b"]
            assert store.snapshots()[0] == first
    assert reached == {"a", "b"}


def _whole(drive: Disk, snapshot: Snapshot) -> bool:
    wanted = {"weights": f"weights of {snapshot.manifest.anchor['key']}", "pt2": "code"}
    files: dict[str, SnapshotFile] = dict(snapshot.manifest.files)
    return {n: drive.read(f"/store/{f.stored}").decode() for n, f in files.items()} == wanted
