"""Anchors of every kind give the same tensors, and say so when they are damaged."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from headway.errors import CheckpointDamaged, CheckpointUntrusted, UsageError
from headway.publish.anchor import Anchor, fetch_anchor, find_anchor, pending_anchors
from tests.support import code_of, has_code, lazy
from tests.unit.publish.anchors import checkpoint, dcp_checkpoint, state

torch = lazy("torch")
source = lazy("headway.publish.source:open_source")
whole = lazy("headway.publish.source:read_tensor")
trained = lazy("tests.unit.publish.dlrm:trained")


def opened(kind: str, folder: Path) -> Anchor:
    given = state(trained())
    if kind == "store":
        checkpoint(folder, given)
        return find_anchor(str(folder))
    if kind == "dcp":
        return find_anchor(str(dcp_checkpoint(folder, given)))
    if kind == "remote":
        url = f"memory://{secrets.token_hex(8)}/store"
        checkpoint(url, given)
        anchor = find_anchor(url)
        assert find_anchor(anchor.path) == anchor
        return fetch_anchor(anchor, folder)
    folder.mkdir()
    torch.save(given, folder / "a.pt")
    return find_anchor(str(folder / "a.pt"))


@pytest.mark.parametrize("kind", ["store", "remote", "dcp", "file"])
def test_the_tensors_come(kind: str, tmp_path: Path) -> None:
    given = source(opened(kind, tmp_path / "anchor"))
    for name, tensor in trained().state_dict().items():
        assert torch.equal(whole(given, f"model.{name}"), tensor)
        into = torch.zeros(tensor.shape, dtype=torch.float64)
        given.read(f"model.{name}", into)
        assert torch.equal(into, tensor.double())
        given.read(f"model.{name}", into)
        assert torch.equal(into, tensor.double()), "as often as one likes"


def test_which_checkpoint_is_meant(tmp_path: Path) -> None:
    given = state(trained())
    first = checkpoint(tmp_path, given, 1)
    assert find_anchor(str(tmp_path)).step == 1
    checkpoint(tmp_path, given, 2, anchor=False)
    assert find_anchor(str(tmp_path)).step == 1, "the newest anchor"
    third = checkpoint(tmp_path, given, 3)
    assert find_anchor(str(tmp_path)).step == 3 and find_anchor(first.path).step == 1
    assert [anchor.step for anchor in pending_anchors(str(tmp_path))] == [1, 3]
    assert (
        find_anchor(third.path).key("a")
        != find_anchor(third.path).key("b")
        != find_anchor(first.path).key("b")
    )
    for name in ("b", "a"):
        dcp_checkpoint(tmp_path / "others" / name, given)
    names = [Path(anchor.path).name for anchor in pending_anchors(str(tmp_path / "others"))]
    assert names == ["b", "a"], "as they came"


def test_the_rows_of_deltas(tmp_path: Path) -> None:
    from tests.unit.publish.deltas import three_saves

    wanted = three_saves(tmp_path)
    anchor = find_anchor(str(tmp_path))
    assert len(anchor.chain) > 1
    given = source(anchor)
    for name, tensor in wanted.items():
        assert torch.equal(whole(given, f"model.{name}"), tensor)
        into = torch.zeros(tensor.shape, dtype=torch.int32 if tensor.is_floating_point() else None)
        given.read(f"model.{name}", into)
        assert torch.equal(into, tensor.to(into.dtype)), "also of another type"


def test_no_anchor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, check=has_code("anchor-not-found")):
        find_anchor(str(tmp_path / "none"))
    with pytest.raises(UsageError, check=has_code("anchor-not-found")):
        find_anchor(str(tmp_path))


@pytest.mark.parametrize("kind", ["store", "dcp", "file"])
def test_a_corrupt_shard(kind: str, tmp_path: Path) -> None:
    anchor = opened(kind, tmp_path / "anchor")
    file = Path(anchor.path)
    if file.is_dir():
        (file,) = file.glob("*.distcp")
    cut = file.stat().st_size // (2 if kind == "store" else 50)
    with file.open("r+b") as out:
        out.truncate(cut)
    with pytest.raises(CheckpointDamaged):
        given = source(anchor)
        for name in given.shapes:
            whole(given, name)


def test_one_changed_bit_is_seen(tmp_path: Path) -> None:
    anchor = opened("store", tmp_path / "anchor")
    (checkpoint,) = anchor.chain
    (file,) = (file for file in checkpoint.manifest.files if file.items)
    chance = random.Random(1)
    path = Path(checkpoint.path, file.name)
    bytes_ = bytearray(path.read_bytes())
    for item in chance.sample([item for item in file.items if item.size], 5):
        at = item.data + chance.randrange(item.size)
        bytes_[at] ^= 1
        path.write_bytes(bytes_)
        with pytest.raises(CheckpointDamaged, check=has_code("checksum-mismatch")):
            whole(source(anchor), item.name)
        bytes_[at] ^= 1
    (Path(checkpoint.path) / ".metadata").write_bytes(b"changed")
    damage = find_anchor(checkpoint.path).damage
    assert ".metadata" in damage and code_of(damage) == "size-mismatch"


def test_nothing_but_tensors_is_unpickled(tmp_path: Path) -> None:
    torch.save({"model": trained()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointUntrusted, check=has_code("checkpoint-untrusted")):
        source(find_anchor(str(tmp_path / "a.pt")))
    (tmp_path / "b.pt").write_bytes(b"no file of torch")
    with pytest.raises(CheckpointDamaged, check=has_code("checkpoint-not-readable")):
        source(find_anchor(str(tmp_path / "b.pt")))
