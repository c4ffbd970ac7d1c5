"""Real jobs under a real `headway run`, and what they measured themselves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.ledger.run import Run, load

JOBS = Path(__file__).parent / "jobs"
BIN = Path(sys.executable).parent


@dataclass
class Done:
    """A finished job: its ledger, what it said of itself, and its output."""

    code: int
    run: Run
    truth: dict[str, dict[str, Any]]
    output: str

    def seconds(self, leaf: str) -> float:
        return self.run.ledger.buckets.get(leaf, 0) / 1e9


Runner = Callable[..., Done]


@pytest.fixture
def run_job(tmp_path: Path) -> Runner:
    """Run a command below `headway run` in an empty folder."""
    (tmp_path / "truth").mkdir()

    def run(*command: str, name: str = "job", env: dict[str, str] | None = None) -> Done:
        done = subprocess.run(
            [str(BIN / "headway"), "run", "-o", f"runs/{name}", "--", *command],
            cwd=tmp_path,
            env={**os.environ, **quiet_env(tmp_path), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
        )
        truth = {
            path.stem: json.loads(path.read_text())
            for path in sorted((tmp_path / "truth").glob("*.json"))
        }
        return Done(done.returncode, load(tmp_path / "runs" / name), truth, done.stdout)

    return run


def quiet_env(folder: Path) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "TRUTH": str(folder / "truth"),
        "PORT": str(port),
        "PYTHONPATH": str(JOBS),
        "HEADWAY_STRICT": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def close(measured: float, truth: float) -> bool:
    """Within 0.1 s + 2 % of what the job measured."""
    return abs(measured - truth) <= 0.1 + 0.02 * truth


def python(*words: str) -> tuple[str, ...]:
    return (str(BIN / "python"), *words)


def job(name: str) -> str:
    return str(JOBS / f"{name}.py")
