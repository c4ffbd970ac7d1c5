"""A pointer that is lost or damaged: it is said, and one start or one command puts it right."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from headway.cli import main
from headway.errors import SnapshotDamaged, UsageError
from headway.publish import load
from headway.publish.store import Store
from tests.unit.publish.test_store import publish

DAMAGE = [None, b"", b"{}", b"[]", b'{"snapshot": "../../x", "newest": 1}', b"\xff\xfe"]


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    there = tmp_path / "s" if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    return Store(there)


def spoil(store: Store, content: bytes | None) -> None:
    if content is None:
        store.place.delete("latest")
    else:
        store.place.write("latest", content)


@pytest.mark.parametrize("content", DAMAGE)
def test_it_is_said_with_the_cure(
    content: bytes | None, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    one = publish(store, "a")
    spoil(store, content)
    with pytest.raises(SnapshotDamaged) as error:
        load(store.place.url)
    cure = f"`headway publish --rollback --to {store.place.url}` lets a whole one serve"
    assert str(error.value).endswith(cure)
    assert main(["publish", "--list", "--to", store.place.url]) == 70
    out, err = capsys.readouterr()
    assert out.startswith(f"{one.name}   ") and err.endswith(f"{cure}\n") and err.count("\n") == 1
    assert main(["publish", "--rollback", "--to", store.place.url]) == 0
    assert capsys.readouterr().out == f"{one.name} serves now\n"
    assert main(["publish", "--list", "--to", store.place.url]) == 0
    assert capsys.readouterr().out.startswith(f"{one.name} * ")


@pytest.mark.parametrize("content", DAMAGE)
def test_the_next_start_puts_it_right(content: bytes | None, store: Store) -> None:
    made = [publish(store, anchor) for anchor in "abc"]
    spoil(store, content)
    store.sweep()
    assert store.latest() == made[2]
    spoil(store, content)
    assert publish(store, "d").manifest.number == 4
    spoil(store, content)
    assert store.rollback("2") == made[1] == store.latest()


def test_one_that_is_damaged_never_serves(store: Store) -> None:
    made = [publish(store, anchor) for anchor in "abc"]
    weights = made[2].manifest.files["weights"].stored
    store.place.write(weights, b"weights of d")
    spoil(store, None)
    assert store.rollback() == made[1] == store.latest()
    with pytest.raises(SnapshotDamaged, match=f"{made[2].name} cannot serve: weights was changed"):
        store.rollback("3")
    assert store.latest() == made[1]
    spoil(store, b"?")
    store.place.write(made[1].manifest.files["pt2"].stored, b"????")  # they all have it
    store.sweep()
    assert store.latest() is None, "none is whole"
    with pytest.raises(UsageError, match="no snapshot serves from"):
        store.rollback()
    assert publish(store, "d") == store.latest()


def test_one_that_is_damaged_is_passed_over(store: Store) -> None:
    made = [publish(store, anchor) for anchor in "abc"]
    said: list[str] = []
    store.place.write(made[1].manifest.files["weights"].stored, b"?")
    assert store.rollback(say=said.append) == made[0]
    assert said == [f"{made[1].name} is passed over: weights is missing or cut short"]


def test_a_snapshot_that_serves_and_is_gone(store: Store) -> None:
    first, second = (publish(store, anchor) for anchor in "ab")
    store.place.delete(f"snapshots/{second.name}.json")
    with pytest.raises(SnapshotDamaged, match=r"is gone from .*; `headway publish --rollback"):
        store.snapshot()
    store.place.write(f"snapshots/{second.name}.json", b"{}")
    with pytest.raises(SnapshotDamaged, match=r"was changed; `headway publish --rollback"):
        store.snapshot()
    assert list(store.unreadable()) == [second.name]
    assert store.rollback() == first == store.latest()
    third = publish(store, "c", order=0)
    assert third.manifest.number == 3 and store.latest() == third
    publish(store, "d", keep=1)
    assert not store.unreadable(), "retention has it too"
