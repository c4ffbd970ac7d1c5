"""Stores of snapshots that are damaged, or made to do harm: a sentence, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli import publish as command
from headway.errors import HeadwayError, SnapshotDamaged
from headway.publish.safetensors_io import pieces
from headway.publish.store import SnapshotStore
from headway.publish.validate import check_here
from headway.storage.lease import AlreadyPublishing
from tests.mutations import altered, bent
from tests.support import lazy
from tests.unit.publish.anchors import checkpoint, recipe, state
from tests.unit.publish.snapshots import publish

find = lazy("headway.publish.anchor:find_anchor")
load = lazy("headway.publish:load")
make = lazy("headway.publish.job:publish")
tensors = lazy("headway.publish.safetensors_io")
torch = lazy("torch")
trained = lazy("tests.unit.publish.dlrm:trained")
build = lazy("tests.unit.publish.dlrm:build")


class Attacked:
    """A store with two snapshots of a model, and somebody who may write there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headway.publish.validate.TIMED_S", 0)
        self.folder, self.root = folder, folder / "store"
        self.store = SnapshotStore(self.root)
        self.recipe = recipe(folder)
        for step in (1, 2):
            checkpoint(folder / "anchor", state(trained(step)), step)
            given = find(str(folder / "anchor"))
            make(given, self.recipe, self.store, check_target=check_here)
        self.anchor = given
        self.files = [path for path in self.root.rglob("*") if path.is_file()]
        self.whole = {path: path.read_bytes() for path in self.files}
        self.names = sorted(path.name for path in self.store.snapshots())

    def heal(self) -> None:
        for path in self.root.rglob("*"):
            if path.is_file() and path not in self.whole:
                path.unlink()
        for path, content in self.whole.items():
            path.write_bytes(content)

    def put(self, content: bytes, suffix: str) -> dict[str, Any]:
        """A file under its right name; what a manifest says of it."""
        sha256 = hashlib.sha256(content).hexdigest()
        (self.root / "files" / f"{sha256}{suffix}").write_bytes(content)
        return {"sha256": sha256, "size": len(content), "suffix": suffix}

    def serve(self, manifest: Any) -> None:
        """A manifest under its right name, and it serves."""
        content = json.dumps(manifest).encode()
        name = f"00000002-{hashlib.sha256(content).hexdigest()[:32]}"
        (self.root / "snapshots" / f"{self.names[-1]}.json").unlink()
        (self.root / "snapshots" / f"{name}.json").write_bytes(content)
        (self.root / "latest").write_text(json.dumps({"snapshot": name, "newest": 2}))

    def manifest(self) -> Any:
        return json.loads(self.whole[self.root / "snapshots" / f"{self.names[-1]}.json"])

    def look(self, *, publishes: bool = True) -> list[str]:
        """All that is done with a store; the codes of what it says."""
        options = Namespace(json=False, check=True)
        calls = [
            lambda: load(self.root, factory=build),
            lambda: command._list(self.store, options),
            lambda: [
                command._print_details(snapshot, options) for snapshot in self.store.snapshots()
            ],
            lambda: self.store.outcome_of(self.anchor.key(self.recipe.digest)),
            lambda: self.store.find_package("0" * 32),
            lambda: self.store.registry_state(),
            lambda: self.store.sweep(),
            lambda: self.store.rollback(),
        ]
        if publishes:
            calls.append(
                lambda: make(self.anchor, self.recipe, self.store, check_target=check_here)
            )
            calls.append(lambda: load(self.root, factory=build))
        codes = []
        for call in calls:
            text = io.StringIO()
            try:
                with contextlib.redirect_stdout(text):
                    call()
            except HeadwayError as error:
                assert error.code and not isinstance(error, AlreadyPublishing), repr(error)
                codes.append(error.code)
            assert text.getvalue().replace("\n", "").isprintable()
        return codes


def variants(attacked: Attacked, count: int) -> Iterator[None]:
    chance = random.Random(count)
    config, weights = (
        next(path for path in attacked.files if path.suffix == suffix and "files" in path.parts)
        for suffix in (".json", ".safetensors")
    )
    small = [path for path in attacked.files if path.stat().st_size < 10_000]
    for number in range(count):
        kind, manifest = number % 5, attacked.manifest()
        if kind == 0:
            attacked.serve(altered(manifest, chance))
        elif kind == 1:
            document = altered(json.loads(attacked.whole[config]), chance)
            manifest["files"]["config.json"] = attacked.put(json.dumps(document).encode(), ".json")
            attacked.serve(manifest)
        elif kind == 2:
            content = _header(attacked.whole[weights], chance)
            stored = attacked.put(content, ".safetensors")
            manifest["files"]["weights.safetensors"] = stored
            attacked.serve(manifest)
        elif kind == 3:
            path = chance.choice([path for path in small if path.parent.name != "files"])
            document = altered(json.loads(attacked.whole[path] or b"{}"), chance)
            path.write_text(json.dumps(document))
        else:
            path = chance.choice(attacked.files)
            path.write_bytes(bent(attacked.whole[path], chance))
        yield
        attacked.heal()


def _header(content: bytes, chance: random.Random) -> bytes:
    """A file of tensors that says something else of itself."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(altered(json.loads(content[8 : 8 + size]), chance)).encode()
    return (
        chance.choice((len(header), 0, 1 << 60)).to_bytes(8, "little")
        + header
        + content[8 + size :]
    )


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    attacked = Attacked(folder, monkeypatch)
    outside = {path for path in folder.rglob("*") if attacked.root not in path.parents}
    codes = set()
    for number, _ in enumerate(variants(attacked, count)):
        codes |= set(attacked.look(publishes=number % 19 == 0))  # which takes longer
    assert {"snapshot-manifest-invalid", "snapshot-config-invalid", "not-a-tensor-file"} <= codes
    assert {path for path in folder.rglob("*") if attacked.root not in path.parents} == outside
    assert not attacked.look(), "nothing is left of it"


def test_damaged_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_damaged_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, monkeypatch, 2000)


@pytest.mark.parametrize("key", ["../../outside", "a/b", "..", "", 5, None])
def test_an_anchor_whose_key_leads_elsewhere(key: object, tmp_path: Path) -> None:
    """What became of it would be written there."""
    store = SnapshotStore(tmp_path / "s" / "t")
    snapshot = publish(store, "a")
    path = tmp_path / "s" / "t" / "snapshots" / f"{snapshot.name}.json"
    manifest = json.loads(path.read_bytes())
    manifest["anchor"]["key"] = key
    content = json.dumps(manifest).encode()
    path.unlink()
    name = f"00000001-{hashlib.sha256(content).hexdigest()[:32]}"
    path.with_name(f"{name}.json").write_bytes(content)
    (tmp_path / "s/t/latest").unlink()
    store.sweep()
    assert store.snapshots() == [] and list(store.unreadable()) == [name]
    assert sorted(snapshot.name for snapshot in (tmp_path / "s").iterdir()) == ["t"]


def test_a_tensor_that_would_take_all_memory(tmp_path: Path) -> None:
    whole = b"".join(pieces({"a": torch.zeros(4)}))
    text = b'{"a": {"dtype": "F64", "shape": [1000000000, 1000000], "data_offsets": [0, 0]}}'
    path = tmp_path / "weights.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole)
    with pytest.raises(HeadwayError) as error:
        tensors.read(path)
    assert error.value.code == "not-a-tensor-file"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["latest", "snapshots", "files", "anchors"])
def test_a_pipe_in_the_place_of_a_file(what: str, tmp_path: Path) -> None:
    """Nobody waits for what may never be written."""
    store = SnapshotStore(tmp_path)
    snapshot = publish(store, "a")
    path = tmp_path / what
    if path.is_dir():
        path = min(path.iterdir())
    path.unlink()
    os.mkfifo(path)
    if what == "files":
        assert store.damage(snapshot).code == "file-missing"
    elif what == "anchors":
        assert store.outcome_of("a") == {"snapshot": snapshot.name}
    else:
        with pytest.raises(SnapshotDamaged):
            store.latest()
