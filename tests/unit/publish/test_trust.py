"""Anchors that somebody else may have written run no code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store import layout as manifests
from headway.errors import CheckpointDamaged, CheckpointUntrusted, HeadwayError, PublishFailed
from headway.publish.anchor import Anchor, fetch_anchor, find_anchor
from headway.publish.recipe import GOLDEN_PART, GoldenOptions, complete_recipe
from headway.publish.store import SnapshotStore
from headway.publish.validate import check_here
from headway.publish.watch import MAX_TRIES
from headway.storage.place import open_place
from tests.support import codes, has_code, lazy
from tests.unit.publish.anchors import MODEL_MODULE, checkpoint, dcp_checkpoint, recipe, state

torch = lazy("torch")
source = lazy("headway.publish.source:open_source")
publish = lazy("headway.publish.job:publish")
watch = lazy("headway.publish.watch:watch")
trained = lazy("tests.unit.publish.dlrm:trained")
FACTORY = f"{MODEL_MODULE}:build"


class Runs:
    """Does something when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


class Kind:
    """A value of the user's own kind."""


def forged(url: str, runs: Path) -> None:
    """`.metadata` is replaced, and the manifest says that this is right."""
    where = open_place(url)
    (name,) = (name for name in where.list_names() if name.startswith("step-"))
    content = pickle.dumps(Runs(runs))
    where.write(f"{name}/.metadata", content)
    manifest = manifests.manifest_from_bytes(where.read(f"{name}/manifest.json"))
    sha256 = hashlib.sha256(content).hexdigest()
    files = tuple(
        replace(file, size=len(content), sha256=sha256) if file.name == ".metadata" else file
        for file in manifest.files
    )
    where.write(
        f"{name}/manifest.json", manifests.manifest_to_bytes(replace(manifest, files=files))
    )


def opened(folder: Path) -> None:
    """Others may write there."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o022)


@pytest.mark.parametrize("kind", ["shared folder", "own folder", "url", "dcp"])
def test_a_forged_metadata(kind: str, tmp_path: Path) -> None:
    ran, folder = tmp_path / "ran", tmp_path / "anchor"
    url = f"memory://{secrets.token_hex(8)}/store" if kind == "url" else str(folder)
    if kind == "dcp":
        dcp_checkpoint(folder, state(trained()))
        (folder / ".metadata").write_bytes(pickle.dumps(Runs(ran)))
    else:
        checkpoint(url, state(trained()))
        forged(url, ran)
    if kind != "own folder" and kind != "url":
        opened(folder)
    anchor = find_anchor(url)
    assert not anchor.damage, "it looks as it should"
    own = kind == "own folder"
    with pytest.raises(CheckpointDamaged if own else CheckpointUntrusted) as error:
        publish(
            anchor, recipe(tmp_path), SnapshotStore(tmp_path / "store"), check_target=check_here
        )
    assert ran.exists() == own
    if not own:
        assert error.value.fields["classes"] == ["posix.mkdir"]
        (tmp_path / "fetched").mkdir()
        with pytest.raises(CheckpointUntrusted):
            source(fetch_anchor(anchor, tmp_path / "fetched"))
    assert ran.exists() == own


@pytest.mark.parametrize("kind", ["store", "dcp"])
def test_tensors_need_no_permission(kind: str, tmp_path: Path) -> None:
    if kind == "store":
        checkpoint(tmp_path / "anchor", state(trained()))
    else:
        dcp_checkpoint(tmp_path / "anchor", state(trained()))
    opened(tmp_path / "anchor")
    anchor = find_anchor(str(tmp_path / "anchor"))
    assert publish(
        anchor, recipe(tmp_path), SnapshotStore(tmp_path / "store"), check_target=check_here
    ).fresh


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_a_file_outside_the_folder_is_not_read(name: str, tmp_path: Path) -> None:
    folder = dcp_checkpoint(tmp_path / "anchor", state(trained()))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointDamaged, check=has_code("file-outside-folder")):
        source(find_anchor(str(folder)))


@pytest.mark.parametrize(
    "field", ["state_dict_metadata", "storage_data", "size", "chunks", "dtype", "offsets"]
)
def test_metadata_that_makes_no_sense(field: str, tmp_path: Path) -> None:
    folder = dcp_checkpoint(tmp_path / "anchor", state(trained()))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    tensors = [item for item in metadata.state_dict_metadata.values() if getattr(item, "size", ())]
    first = tensors[0]
    if field in ("state_dict_metadata", "storage_data"):
        setattr(metadata, field, ["x"])
    elif field == "dtype":
        first.properties.dtype = "float32"
    elif field == "offsets":
        first.chunks[0].offsets = torch.Size([-1] * len(first.size))
    else:
        setattr(first, field, {"size": [1.5], "chunks": 5}[field])
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointDamaged, check=has_code("metadata-not-readable")):
        source(find_anchor(str(folder)))


def test_a_file_of_torch_names_the_class_and_the_call(tmp_path: Path) -> None:
    torch.save({**state(trained()), "kind": Kind()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointUntrusted) as error:
        source(find_anchor(str(tmp_path / "a.pt")))
    name = f"{__name__}.Kind"
    assert error.value.fields["classes"] == [name]
    assert f"torch.serialization.add_safe_globals([{name}])" in str(error.value)
    with torch.serialization.safe_globals([Kind]):
        source(find_anchor(str(tmp_path / "a.pt")))


def test_the_module_of_the_factory_allows_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({**state(trained()), "kind": Kind()}, tmp_path / "a.pt")
    text = f"""
import torch
from {__name__} import Kind
from {MODEL_MODULE} import build
torch.serialization.add_safe_globals([Kind])
"""
    (tmp_path / "allowing_factory.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    parsed = recipe(tmp_path, model='factory = "allowing_factory:build"')
    try:
        store = SnapshotStore(tmp_path / "store")
        assert publish(
            find_anchor(str(tmp_path / "a.pt")), parsed, store, check_target=check_here
        ).fresh
    finally:
        torch.serialization.clear_safe_globals()


@pytest.mark.parametrize("where", ["url", "shared", "own"])
def test_a_factory_that_the_anchor_names(where: str, tmp_path: Path) -> None:
    """As code of the anchor: the recipe has to say so, unless only this user can have."""
    url = f"memory://{secrets.token_hex(8)}/store" if where == "url" else str(tmp_path / "anchor")
    extra = {"publish": {"factory": FACTORY, "arguments": {}}}
    checkpoint(url, state(trained()), extra=extra)
    if where == "shared":
        opened(tmp_path / "anchor")
    store, anchor = SnapshotStore(tmp_path / "store"), find_anchor(url)
    if where == "own":
        assert publish(anchor, recipe(tmp_path, model=""), store, check_target=check_here).fresh
        return
    with pytest.raises(CheckpointUntrusted) as error:
        publish(anchor, recipe(tmp_path, model=""), store, check_target=check_here)
    assert error.value.fields["classes"] == [FACTORY]
    assert publish(anchor, recipe(tmp_path), store, check_target=check_here).fresh


TUPLE = {"type": "builtins.tuple", "context": "null", "children_spec": []}
FACTORY_OF = {"default_factory_module": "os", "default_factory_name": "system", "dict_context": []}
DEFAULT = {"type": "collections.defaultdict", "context": FACTORY_OF, "children_spec": []}


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        (json.dumps([1, {**TUPLE, "children_spec": [TUPLE, TUPLE]}]), True),
        (json.dumps([1, {**TUPLE, "children_spec": [DEFAULT]}]), False),
        (json.dumps([1, {"type": "builtins.tuple"}]), False),
        ("[" * 100_000, False),
        ("{}", False),
    ],
)
def test_how_golden_inputs_are_handed_over(spec: str, plain: bool, tmp_path: Path) -> None:
    info = {"inputs": spec}
    given = replace(recipe(tmp_path), golden=GoldenOptions())
    assert complete_recipe(given, "a", info).golden.anchor == GOLDEN_PART
    if plain:
        assert complete_recipe(given, "a", info, trusted=False).spec == spec
        return
    with pytest.raises(CheckpointUntrusted):
        complete_recipe(given, "a", info, trusted=False)


@pytest.mark.parametrize("spec", ["", "{}", "[1, {}]", "[7, null]", json.dumps([1, TUPLE])])
def test_inputs_that_cannot_be_handed_over(spec: str) -> None:
    from headway.publish import golden

    with pytest.raises(PublishFailed, check=has_code("golden-inputs-malformed")):
        golden.read_golden({"inputs.0": torch.zeros(1)}, spec)


def test_a_worker_tries_it_again(tmp_path: Path) -> None:
    """Somebody may allow it meanwhile."""
    checkpoint(tmp_path / "anchor", state(trained()), 1)
    forged(str(tmp_path / "anchor"), tmp_path / "ran")
    opened(tmp_path / "anchor")
    lines: list[str] = []
    store = SnapshotStore(tmp_path / "store")
    watch(str(tmp_path / "anchor"), recipe(tmp_path), store, log=lines.append, once=True)
    assert codes("\n".join(lines)) == ["checkpoint-untrusted"] and MAX_TRIES > 1
    pending: list[Anchor] = [find_anchor(str(tmp_path / "anchor"))]
    note = store.outcome_of(pending[0].key(recipe(tmp_path).digest))
    assert note.keys() == {"deferred", "tries", "again"}
    assert not (tmp_path / "ran").exists() and issubclass(CheckpointUntrusted, HeadwayError)
