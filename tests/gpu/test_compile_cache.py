"""A compile cache that has moved: on a GPU nothing is compiled and nothing is tuned again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROOT = Path(__file__).parents[2]
JOB = ROOT / "benchmarks" / "jobs" / "compiled.py"


def train(folder: Path, name: str) -> tuple[list[float], list[dict[str, Any]]]:
    """One job in a container of its own: its losses, and its journal."""
    temporary = folder / f"tmp-{name}"
    temporary.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith("TORCHINDUCTOR")}
    env |= {"TMPDIR": str(temporary), "TRITON_HOME": str(temporary)}
    env |= {"REPORT": str(folder / f"{name}.json"), "PYTHONPATH": str(ROOT / "src")}
    run = ["run", "-o", name, "--no-report", "--compile-cache", str(folder / "store")]
    job = [sys.executable, str(JOB), "dlrm", "--device", "cuda"]
    command = [sys.executable, "-m", "headway", *run, "--", *job]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=150)
    paths = (folder / name / "journal").glob("*.jsonl")
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return json.loads(Path(env["REPORT"]).read_text())["losses"], [json.loads(one) for one in lines]


def test_nothing_is_tuned_again(tmp_path: Path) -> None:
    losses, cold = train(tmp_path, "cold")
    assert [event for event in cold if event["ev"] == "autotune"]
    again, warm = train(tmp_path, "warm")
    assert again == losses
    assert not [event for event in warm if event["ev"] == "autotune"]
    compiles = [event for event in warm if event["ev"] == "detail" and "cached" in event]
    assert compiles and all(event["cached"] for event in compiles), compiles
