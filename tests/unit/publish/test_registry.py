"""A registry follows a store; tests/mlflow has a real one."""

from __future__ import annotations

import secrets
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway.errors import MissingExtra, RegistryFailed, SnapshotDamaged, UsageError
from headway.publish import recipe as recipes
from headway.publish.loading import open_snapshot_folder
from headway.publish.registry import begin, follow, open_registry, remembered_options
from headway.publish.registry_mlflow import tags
from headway.publish.snapshot import Snapshot
from headway.publish.store import SnapshotStore
from tests.support import has_code
from tests.unit.publish.snapshots import publish

OPTIONS = recipes.RegistryOptions(mlflow="ctr", uri="http://registry")


class MemoryRegistry:
    """A registry in memory."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.serving = ""
        self.away = False

    def find_version(self, snapshot: Snapshot) -> str | None:
        return str(self.names.index(snapshot.name) + 1) if snapshot.name in self.names else None

    def register(self, snapshot: Snapshot, folder: Path) -> str:
        if self.away:
            raise RegistryFailed("away")
        laid_out = open_snapshot_folder(folder)
        assert laid_out is not None and laid_out.snapshot("latest") == snapshot
        for name, file in snapshot.manifest.files.items():
            assert laid_out.fetch(file, name, folder) == folder / name
        self.names.append(snapshot.name)
        return str(len(self.names))

    def serve(self, version: str) -> None:
        self.serving = self.names[int(version) - 1]


@pytest.fixture(params=["folder", "memory"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SnapshotStore:
    monkeypatch.setattr("headway.storage.lease.SETTLE_S", 0)
    there = tmp_path / "s" if request.param == "folder" else f"memory://{secrets.token_hex(8)}"
    return SnapshotStore(there)


def test_every_snapshot_once_and_what_serves(store: SnapshotStore) -> None:
    known = MemoryRegistry()
    assert follow(store, OPTIONS, known) is None, "there is nothing yet"
    before, first = publish(store, "a"), publish(store, "b")
    assert follow(store, OPTIONS, known) == "1"
    assert known.names == [first.name], "of those from before, what serves"
    assert follow(store, OPTIONS, known) is None
    known.away = True
    second = publish(store, "c")
    with pytest.raises(RegistryFailed):
        follow(store, OPTIONS, known)
    known.away = False
    third = publish(store, "d", keep=3)
    assert follow(store, OPTIONS, known) == "3"
    assert known.names == [snapshot.name for snapshot in (first, second, third)]
    assert known.serving == third.name
    store.rollback("2")
    assert follow(store, OPTIONS, known) == "1" and known.serving == first.name
    with pytest.raises(UsageError):
        store.rollback(before.name)


def test_what_was_made_before_the_first_answer_is_registered_too(store: SnapshotStore) -> None:
    publish(store, "a")
    begin(store, OPTIONS)
    known, snapshots = MemoryRegistry(), [publish(store, anchor) for anchor in "bc"]
    begin(store, OPTIONS)
    assert follow(store, OPTIONS, known) == "2"
    assert known.names == [snapshot.name for snapshot in snapshots]


def test_what_another_start_has_registered_is_found(store: SnapshotStore) -> None:
    known = MemoryRegistry()
    publish(store, "a")
    follow(store, OPTIONS, known)
    store.save_registry_state({**store.registry_state(), "versions": []})
    publish(store, "b")
    follow(store, OPTIONS, known)
    assert len(known.names) == 2
    assert follow(store, replace(OPTIONS, mlflow="another"), MemoryRegistry()) == "1"
    assert remembered_options(store) == replace(OPTIONS, mlflow="another")


def test_a_damaged_snapshot_is_not_registered(tmp_path: Path) -> None:
    store, known = SnapshotStore(tmp_path), MemoryRegistry()
    publish(store, "0")
    follow(store, OPTIONS, known)
    snapshot = publish(store, "a")
    weights = tmp_path / snapshot.manifest.files["weights"].stored
    weights.write_bytes(weights.read_bytes()[::-1])
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")) as error:
        follow(store, OPTIONS, known)
    assert error.value.fields["file"] == "weights"
    two = publish(store, "b")
    assert follow(store, OPTIONS, known) == "2" and known.serving == two.name


def test_what_a_version_says(tmp_path: Path) -> None:
    snapshot = publish(SnapshotStore(tmp_path), "a")
    values = tags(snapshot)
    assert values["headway.snapshot"] == snapshot.name and values["headway.anchor"] == "a"
    assert values["headway.sha256.pt2"] == snapshot.manifest.files["pt2"].sha256
    assert "headway.run" not in values


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (replace(OPTIONS, alias="Latest"), "registry-alias-reserved"),
        (replace(OPTIONS, mlflow="a/b"), "registry-model-invalid"),
        (replace(OPTIONS, uri=None), "registry-uri-missing"),
    ],
)
def test_a_mistake_is_told(
    told: recipes.RegistryOptions, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UsageError, check=has_code(code)):
        open_registry(told)


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="mlflow is installed")
def test_a_missing_client_is_told() -> None:
    with pytest.raises(MissingExtra) as error:
        open_registry(OPTIONS)
    assert error.value.fields["extra"] == "mlflow"
