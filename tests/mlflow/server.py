"""A real server of MLflow in a folder, and what it knows of a model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}


@contextlib.contextmanager
def server(folder: Path, port: int) -> Iterator[str]:
    """It keeps runs in SQLite, and artifacts beside; its URL."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/known.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment() -> dict[str, str]:
    """That of a new process: without what MLflow has put into ours."""
    return {n: v for n, v in os.environ.items() if not n.startswith("MLFLOW")} | QUIET


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())


def versions(client: Any, model: str) -> dict[str, list[str]]:
    """The versions of a model, by the snapshot that each is of."""
    names: dict[str, list[str]] = {}
    for version in client.search_model_versions(f"name = '{model}'"):
        names.setdefault(version.tags["headway.snapshot"], []).append(str(version.version))
    return names


def runs(client: Any, model: str) -> list[str]:
    """The snapshots that there are runs of."""
    known = client.get_experiment_by_name(model)
    return [run.data.tags["headway.snapshot"] for run in client.search_runs([known.experiment_id])]
