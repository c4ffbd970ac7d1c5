"""Checkpoints of a store at any world size, in real ranks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headway.checkpoint.store.store import Store
from tests.integration.checkpointed.server import ask

pytest.importorskip("torch", reason="needs torch")


@pytest.mark.timeout(110)
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_any_world_size_from_any_other(before: int, after: int, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert run("save", before, store) == [0] * before
    (one,) = Store(store).checkpoints()
    assert one.manifest.world == before
    assert len([name for name in os.listdir(one.path) if name.endswith(".distcp")]) == before
    moved = tmp_path / "moved"  # nothing in it says where it lay
    shutil.move(store, moved)
    assert run("check", after, moved) == [0] * after


def run(do: str, world: int, store: Path) -> list[int]:
    meet = store.with_name(f"{do}-{world}")
    codes: list[int] = ask("worlds:run", do=do, world=world, store=str(store), meet=str(meet))
    return codes
