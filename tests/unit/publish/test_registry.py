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

TOLD = recipes.RegistryOptions(mlflow="ctr", uri="http://registry")


class Known:
    """A registry in memory."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.serving = ""
        self.away = False

    def find_version(self, one: Snapshot) -> str | None:
        return str(self.names.index(one.name) + 1) if one.name in self.names else None

    def register(self, one: Snapshot, folder: Path) -> str:
        if self.away:
            raise RegistryFailed("away")
        brought = open_snapshot_folder(folder)
        assert brought is not None and brought.snapshot("latest") == one
        for name, file in one.manifest.files.items():
            assert brought.fetch(file, name, folder) == folder / name
        self.names.append(one.name)
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
    known = Known()
    assert follow(store, TOLD, known) is None, "there is nothing yet"
    before, first = publish(store, "a"), publish(store, "b")
    assert follow(store, TOLD, known) == "1"
    assert known.names == [first.name], "of those from before, what serves"
    assert follow(store, TOLD, known) is None
    known.away = True
    second = publish(store, "c")
    with pytest.raises(RegistryFailed):
        follow(store, TOLD, known)
    known.away = False
    third = publish(store, "d", keep=3)
    assert follow(store, TOLD, known) == "3"
    assert known.names == [one.name for one in (first, second, third)]
    assert known.serving == third.name
    store.rollback("2")
    assert follow(store, TOLD, known) == "1" and known.serving == first.name
    with pytest.raises(UsageError):
        store.rollback(before.name)


def test_what_was_made_before_the_first_answer_is_registered_too(store: SnapshotStore) -> None:
    publish(store, "a")
    begin(store, TOLD)
    known, made = Known(), [publish(store, anchor) for anchor in "bc"]
    begin(store, TOLD)
    assert follow(store, TOLD, known) == "2"
    assert known.names == [one.name for one in made]


def test_what_another_start_has_registered_is_found(store: SnapshotStore) -> None:
    known = Known()
    publish(store, "a")
    follow(store, TOLD, known)
    store.save_registry_state({**store.registry_state(), "versions": []})
    publish(store, "b")
    follow(store, TOLD, known)
    assert len(known.names) == 2
    assert follow(store, replace(TOLD, mlflow="another"), Known()) == "1"
    assert remembered_options(store) == replace(TOLD, mlflow="another")


def test_a_damaged_snapshot_is_not_registered(tmp_path: Path) -> None:
    store, known = SnapshotStore(tmp_path), Known()
    publish(store, "0")
    follow(store, TOLD, known)
    one = publish(store, "a")
    weights = tmp_path / one.manifest.files["weights"].stored
    weights.write_bytes(weights.read_bytes()[::-1])
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")) as error:
        follow(store, TOLD, known)
    assert error.value.fields["file"] == "weights"
    two = publish(store, "b")
    assert follow(store, TOLD, known) == "2" and known.serving == two.name


def test_what_a_version_says(tmp_path: Path) -> None:
    one = publish(SnapshotStore(tmp_path), "a")
    told = tags(one)
    assert told["headway.snapshot"] == one.name and told["headway.anchor"] == "a"
    assert told["headway.sha256.pt2"] == one.manifest.files["pt2"].sha256
    assert "headway.run" not in told


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (replace(TOLD, alias="Latest"), "registry-alias-reserved"),
        (replace(TOLD, mlflow="a/b"), "registry-model-invalid"),
        (replace(TOLD, uri=None), "registry-uri-missing"),
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
        open_registry(TOLD)
    assert error.value.fields["extra"] == "mlflow"
