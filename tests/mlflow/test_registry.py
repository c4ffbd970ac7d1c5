"""Snapshots in the model registry of a real server of MLflow: `make test-mlflow`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow.server", reason="needs a server of MLflow: make test-mlflow")

import torch
from requests.adapters import HTTPAdapter
from safetensors.torch import load_file

import mlflow
from headway import publish
from headway.errors import SnapshotDamaged
from headway.publish import recipe as recipes
from headway.publish.registry import follow, open_registry
from headway.publish.store import SnapshotStore
from tests.mlflow.server import QUIET, environment, runs, server, versions
from tests.support import codes, free_port, has_code
from tests.unit.publish import dlrm
from tests.unit.publish.anchors import checkpoint, state
from tests.unit.publish.snapshots import publish as committed

pytestmark = pytest.mark.timeout(300)
RECIPE = """
[model]
factory = "served:build"
[golden]
inputs = "served:golden"
[targets.safetensors]
[registry]
mlflow = "{model}"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    os.environ.update(QUIET)
    with server(tmp_path_factory.mktemp("server"), free_port()) as running:
        mlflow.set_tracking_uri(running)
        mlflow.set_registry_uri(running)
        yield running


@pytest.fixture
def client(url: str) -> Any:
    return mlflow.MlflowClient(url, url)


def prepared(folder: Path, model: str) -> Path:
    """What a user has; the folder of checkpoints."""
    shutil.copy(dlrm.__file__, folder / "served.py")
    (folder / "recipe.toml").write_text(RECIPE.format(model=model))
    return folder / "checkpoints"


def registry_options(url: str) -> dict[str, str]:
    """The environment of the command."""
    more = {"MLFLOW_TRACKING_URI": url, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    return {**environment(), **more, "OMP_NUM_THREADS": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headway", "publish", *words, "--to", "store"]


def headway(folder: Path, url: str, *words: str, code: int = 0) -> str:
    """Run the command; what it said."""
    done = subprocess.run(
        command(*words), cwd=folder, env=registry_options(url), capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (1 if code else 0), done.stderr
    return done.stdout if code == 0 else done.stderr


def says(model: Any) -> torch.Tensor:
    dense, sparse = dlrm.golden()
    with torch.no_grad():
        outputs: torch.Tensor = model(dense, sparse)["logit"]
    return outputs


def test_published_registered_downloaded_and_rolled_back(
    url: str, client: Any, tmp_path: Path
) -> None:
    anchor = prepared(tmp_path, "ctr")
    snapshots = []
    for step in (1, 2):
        extra = {"run": "run-7", "metrics": {"loss": 0.5, "AUC @ 1%": 0.7}}
        checkpoint(anchor, state(dlrm.trained(step)), step, extra=extra)
        output = headway(tmp_path, url, str(anchor), "--recipe", "recipe.toml")
        assert "http" not in output  # MLflow's own links
        assert client.get_model_version_by_alias("ctr", "champion").version == str(step)
        snapshots.append(SnapshotStore(tmp_path / "store").snapshot())
    headway(tmp_path, url, str(anchor), "--recipe", "recipe.toml")
    assert SnapshotStore(tmp_path / "store").snapshots() == snapshots, "it was published before"
    assert versions(client, "ctr") == {
        snapshot.name: [str(at)] for at, snapshot in enumerate(snapshots, 1)
    }
    champion = client.get_model_version_by_alias("ctr", "champion")
    assert champion.version == "2"
    manifest = snapshots[1].manifest
    sums = {f"headway.sha256.{name}": file.sha256 for name, file in manifest.files.items()}
    assert sums.items() <= champion.tags.items() and len(sums) == 3
    assert champion.tags["headway.anchor"] == manifest.anchor["path"]
    assert champion.tags["headway.run"] == "run-7" and champion.tags["headway.step"] == "2"
    assert champion.tags["headway.metric.loss"] == "0.5"
    logged = client.get_run(champion.run_id).data.metrics
    assert logged["AUC _ 1_"] == 0.7 and logged["safetensors.latency_ms"] > 0

    files = mlflow.artifacts.download_artifacts("models:/ctr@champion")
    assert torch.equal(says(publish.load(files, factory=dlrm.build)), says(dlrm.trained(2).eval()))
    plain = dlrm.build()
    plain.load_state_dict(load_file(Path(files) / "weights.safetensors"))
    assert torch.equal(says(plain.eval()), says(dlrm.trained(2).eval()))
    (Path(files) / "weights.safetensors").write_bytes(b"changed")
    with pytest.raises(SnapshotDamaged, check=has_code("checksum-mismatch")):
        publish.load(files, factory=dlrm.build)

    headway(tmp_path, url, "--rollback")
    assert client.get_model_version_by_alias("ctr", "champion").version == "1"
    headway(tmp_path, url, "--rollback", "2")
    assert client.get_model_version_by_alias("ctr", "champion").version == "2"
    assert len(versions(client, "ctr")) == 2


def test_a_server_that_is_away_is_told_once_it_is_back(tmp_path: Path) -> None:
    anchor, port = prepared(tmp_path, "away"), free_port()
    away = f"http://127.0.0.1:{port}"
    checkpoint(anchor, state(dlrm.trained(1)), 1)
    output = headway(tmp_path, away, str(anchor), "--recipe", "recipe.toml", code=70)
    assert codes(output) == ["registry-failed"]
    first = SnapshotStore(tmp_path / "store").snapshot()
    with server(tmp_path / "server", port):
        headway(tmp_path, away, "--watch", str(anchor), "--recipe", "recipe.toml", "--once")
        known = mlflow.MlflowClient(away, away)
        assert versions(known, "away") == {first.name: ["1"]}
        # Nothing is left to do, and nothing is asked.
    headway(tmp_path, away, "--watch", str(anchor), "--recipe", "recipe.toml", "--once")


def test_two_workers(url: str, client: Any, tmp_path: Path) -> None:
    anchor = prepared(tmp_path, "pair")
    for step in range(4):
        checkpoint(anchor, state(dlrm.trained(step)), step)
    words = command("--watch", str(anchor), "--recipe", "recipe.toml", "--once")
    pair = [
        subprocess.Popen(words, cwd=tmp_path, env=registry_options(url), stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [worker.wait() for worker in pair] == [0, 0]
    headway(tmp_path, url, "--watch", str(anchor), "--recipe", "recipe.toml", "--once")
    store = SnapshotStore(tmp_path / "store")
    names = [worker.name for worker in store.snapshots()]
    assert len(names) == 4
    registered = versions(client, "pair")
    assert sorted(registered) == names and all(len(worker) == 1 for worker in registered.values())
    assert sorted(runs(client, "pair")) == names
    champion = client.get_model_version_by_alias("pair", "champion")
    assert champion.tags["headway.snapshot"] == store.snapshot().name


def follow_and_die(
    store: SnapshotStore, registry: recipes.RegistryOptions, calls: int, *, after: bool
) -> bool:
    """In a process that is killed before its n-th request, or before it sees what came of it."""
    child = os.fork()
    if child == 0:
        remaining, send = calls, HTTPAdapter.send

        def counted(self: HTTPAdapter, *args: Any, **more: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = send(self, *args, **more)
            if remaining < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        HTTPAdapter.send = counted  # type: ignore[method-assign]
        try:
            follow(store, registry, open_registry(registry))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_killed_before_and_after_every_request(url: str, client: Any, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store")
    registry = recipes.RegistryOptions(mlflow="killed", uri=url)
    calls, killed = 0, 0
    for after in (False, True):
        for calls in range(100):
            snapshot = committed(store, f"{after}{calls}", keep=1000)
            if not follow_and_die(store, registry, calls, after=after):
                break
            killed += 1
            follow(store, registry, open_registry(registry))
            registered = versions(client, "killed")
            assert len(registered[snapshot.name]) == 1, (calls, after)
            champion = client.get_model_version_by_alias("killed", "champion")
            assert champion.tags["headway.snapshot"] == snapshot.name
            names = {at.path for at in client.list_artifacts(champion.run_id, "snapshot")}
            assert names == {f"snapshot/{at}" for at in ("weights", "pt2", f"{snapshot.name}.json")}
            assert follow(store, registry, open_registry(registry)) is None
    print(f"killed {killed} times")
    assert killed >= 20
    assert len(runs(client, "killed")) == len(set(runs(client, "killed"))) == killed + 2
    assert store.place.list_names("leases") == []
