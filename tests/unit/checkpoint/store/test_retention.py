"""Retention: what the rules keep, and that nothing else is lost."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from pathlib import Path

import pytest

from headway.checkpoint.store.cleanup import Best, Policy, pin, release, retain, sweep
from headway.checkpoint.store.layout import MANIFEST
from headway.checkpoint.store.store import Store
from headway.errors import SaveFailed, UsageError
from headway.storage.place import LocalPlace
from tests.support import has_code
from tests.unit.checkpoint.store.small_saves import save


@pytest.fixture(params=["folder", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else f"memory://{secrets.token_hex(8)}/store"


def steps(store: str | os.PathLike[str]) -> list[int]:
    return [one.step for one in Store(store).checkpoints()]


def test_rules_add_up(store: str) -> None:
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: float("nan"), 50: 2.5, 60: 2.7}
    for step, loss in losses.items():
        save(store, step, f"id{step}", extra={"metrics": {"loss": loss}})
    policy = Policy(last=2, every=30, best=(Best("loss"), Best("loss", mode="max"), Best("x")))
    gone = retain(store, policy)
    assert [name[:15] for name in gone] == ["step-0000000040"]
    assert steps(store) == [60, 50, 30, 20, 10]
    retain(store, Policy(last=1, best=(Best("loss", n=2),)))
    assert steps(store) == [60, 30, 20]
    retain(store, Policy(last=1))
    assert steps(store) == [60]
    assert retain(store, Policy(last=1)) == []
    assert Store(store).latest_valid("full").notes == ()


def test_an_anchor_stays_until_it_is_released(store: str) -> None:
    first = save(store, 1, "one")
    save(store, 2, "two")
    pin(store, first)
    assert retain(store, Policy(last=1)) == []
    assert Store(store).verify(first, "full") == ""
    release(store, first)
    assert retain(store, Policy(last=1)) == [first.name]
    assert steps(store) == [2]


def test_what_is_gone_is_not_pinned(store: str) -> None:
    first = save(store, 1, "one")
    save(store, 2, "two")
    retain(store, Policy(last=1))
    with pytest.raises(SaveFailed, check=has_code("store-failed")):
        pin(store, first)
    assert steps(store) == [2]


def test_deltas_keep_what_they_build_on(store: str) -> None:
    save(store, 1, "full")
    save(store, 2, "delta1", parent="full")
    save(store, 3, "delta2", parent="delta1")
    assert retain(store, Policy(last=1)) == []
    save(store, 4, "full2")
    assert len(retain(store, Policy(last=1))) == 3
    assert steps(store) == [4]


def test_what_was_replaced_goes(store: str) -> None:
    save(store, 1, "one")
    save(store, 1, "two")
    assert len(retain(store, Policy(last=3))) == 1
    assert [one.manifest.save_id for one in Store(store).scan()[0]] == ["two"]


def test_what_is_damaged_does_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, f"id{step}")
    for step in (3, 4):
        (tmp_path / f"step-{step:010}" / "__0_0.distcp").write_bytes(b"")
    assert retain(tmp_path, Policy(last=1)) == ["step-0000000001"]
    found = Store(tmp_path).latest_valid()
    assert found.checkpoint is not None and found.checkpoint.step == 2


def test_nothing_is_left_of_what_goes(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, f"id{step}")
    retain(tmp_path, Policy(last=1))
    assert sorted(os.listdir(tmp_path)) == [".lock", "latest", "step-0000000002"]


@pytest.mark.parametrize(
    ("rule", "code"),
    [({"last": 0}, "retention-last-too-small"), ({"every": 0}, "retention-every-too-small")],
)
def test_rules_that_make_no_sense(rule: dict[str, int], code: str) -> None:
    with pytest.raises(UsageError, check=has_code(code)):
        Policy(**rule)  # type: ignore[arg-type]


def test_a_commit_and_what_follows_read_each_manifest_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the lock of the store is held nobody else gets on."""
    for step in (1, 2, 3, 4):
        save(tmp_path, step, f"s{step}")
    reads: Counter[str] = Counter()
    read = LocalPlace.read

    def counted(folder: LocalPlace, name: str) -> bytes:
        reads[name] += name.endswith(MANIFEST)
        return read(folder, name)

    monkeypatch.setattr(LocalPlace, "read", counted)
    save(tmp_path, 5, "s5")
    sweep(tmp_path)
    retain(tmp_path, Policy(last=4))
    assert steps(str(tmp_path)) == [5, 4, 3, 2]
    assert reads["step-0000000001/manifest.json"] == 3
