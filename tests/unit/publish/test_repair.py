"""A pointer that is lost or damaged: it is said, and one start or one command puts it right."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from headway.errors import SnapshotDamaged, UsageError
from headway.publish.store import SnapshotStore
from tests.support import cli, codes, has_code, lazy
from tests.unit.publish.snapshots import publish

load = lazy("headway.publish:load")
DAMAGE = [None, b"", b"{}", b"[]", b'{"snapshot": "../../x", "newest": 1}', b"\xff\xfe"]


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    there = tmp_path / "s" if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    return SnapshotStore(there)


def spoil(store: SnapshotStore, content: bytes | None) -> None:
    if content is None:
        store.place.delete("latest")
    else:
        store.place.write("latest", content)


def serves(store: SnapshotStore, folder: Path) -> dict[str, bool]:
    rows = json.loads(
        cli("publish", "--list", "--json", "--to", store.place.url, cwd=folder).stdout
    )
    return {row["snapshot"]: row["serves"] for row in rows}


@pytest.mark.parametrize("content", DAMAGE)
def test_it_is_said_with_the_cure(
    content: bytes | None, store: SnapshotStore, tmp_path: Path
) -> None:
    snapshot = publish(store, "a")
    spoil(store, content)
    code = "latest-missing" if content is None else "latest-changed"
    with pytest.raises(SnapshotDamaged, check=has_code(code)):
        store.snapshot()
    done = cli("publish", "--list", "--to", store.place.url, cwd=tmp_path)
    assert (done.returncode, codes(done.stderr)) == (70, [code])
    cure = ("publish", "--rollback", "--to", store.place.url)
    assert f"`headway {' '.join(cure)}`" in done.stderr
    assert serves(store, tmp_path) == {snapshot.name: False}
    assert cli(*cure, cwd=tmp_path).returncode == 0
    assert cli("publish", "--list", "--to", store.place.url, cwd=tmp_path).returncode == 0
    assert serves(store, tmp_path) == {snapshot.name: True}


def test_a_lost_pointer_when_a_model_is_loaded(store: SnapshotStore) -> None:
    publish(store, "a")
    spoil(store, None)
    with pytest.raises(SnapshotDamaged, check=has_code("latest-missing")):
        load(store.place.url)


@pytest.mark.parametrize("content", DAMAGE)
def test_the_next_start_puts_it_right(content: bytes | None, store: SnapshotStore) -> None:
    snapshots = [publish(store, anchor) for anchor in "abc"]
    spoil(store, content)
    store.sweep()
    assert store.latest() == snapshots[2]
    spoil(store, content)
    assert publish(store, "d").manifest.number == 4
    spoil(store, content)
    assert store.rollback("2") == snapshots[1] == store.latest()


def test_one_that_is_damaged_never_serves(store: SnapshotStore) -> None:
    snapshots = [publish(store, anchor) for anchor in "abc"]
    weights = snapshots[2].manifest.files["weights"].stored
    store.place.write(weights, b"weights of d")
    spoil(store, None)
    assert store.rollback() == snapshots[1] == store.latest()
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")):
        store.rollback("3")
    assert store.latest() == snapshots[1]
    spoil(store, b"?")
    store.place.write(snapshots[1].manifest.files["pt2"].stored, b"????")  # they all have it
    store.sweep()
    assert store.latest() is None, "none is whole"
    with pytest.raises(UsageError, check=has_code("no-snapshot-serves")):
        store.rollback()
    assert publish(store, "d") == store.latest()


def test_one_that_is_damaged_is_passed_over(store: SnapshotStore) -> None:
    snapshots = [publish(store, anchor) for anchor in "abc"]
    lines: list[str] = []
    store.place.write(snapshots[1].manifest.files["weights"].stored, b"?")
    assert store.rollback(log=lines.append) == snapshots[0]
    assert codes("\n".join(lines)) == ["file-missing"] and lines[0].startswith(snapshots[1].name)


def test_a_snapshot_that_serves_and_is_gone(store: SnapshotStore) -> None:
    first, second = (publish(store, anchor) for anchor in "ab")
    store.place.delete(f"snapshots/{second.name}.json")
    with pytest.raises(SnapshotDamaged, check=has_code("snapshot-gone")):
        store.snapshot()
    store.place.write(f"snapshots/{second.name}.json", b"{}")
    with pytest.raises(SnapshotDamaged, check=has_code("snapshot-manifest-changed")):
        store.snapshot()
    assert list(store.unreadable()) == [second.name]
    assert store.rollback() == first == store.latest()
    third = publish(store, "c", order=0)
    assert third.manifest.number == 3 and store.latest() == third
    publish(store, "d", keep=1)
    assert not store.unreadable(), "retention has it too"
