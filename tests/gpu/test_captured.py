"""A hook that asks the device something while a graph is captured would spoil the capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_steps_in_a_cuda_graph(tmp_path: Path) -> None:
    job = Path(__file__).parent / "jobs" / "captured.py"
    headway = [sys.executable, "-m", "headway", "run", "-o", "run", "--", sys.executable, str(job)]
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        headway,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "HEADWAY_STRICT": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "replayed" in done.stdout
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["steps"] == 4  # three before the capture, and the captured one
