"""On CUDA the host runs ahead: waits hidden behind queued work are no stall, and no save."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
JOB = Path(__file__).parent / "jobs" / "run_ahead.py"


def run(folder: Path, wait_ms: int, steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    truth = folder / "truth.json"
    command = [sys.executable, str(JOB), str(wait_ms), str(steps), str(truth)]
    headway = [sys.executable, "-m", "headway", "run", "-o", str(folder / "run"), "--", *command]
    subprocess.run(headway, check=True, timeout=110)
    ledger = json.loads((folder / "run" / "ledger.json").read_text())
    return json.loads(truth.read_text()), ledger


@pytest.mark.parametrize("wait_ms", [0, 4, 60])
def test_the_ledger_agrees_with_the_device(tmp_path: Path, wait_ms: int) -> None:
    truth, ledger = run(tmp_path, wait_ms, 60)
    buckets = ledger["buckets"]
    assert ledger["steps"] == 60
    assert "start.device_init" in buckets
    for leaf, seconds in (
        ("train.effective", truth["device_busy"]),
        ("waste.data_stall", truth["stall"]),
        ("waste.checkpoint_block", truth["save"]),
    ):
        measured = buckets.get(leaf, 0.0)
        assert abs(measured - seconds) <= 0.1 + 0.02 * seconds, (leaf, truth, buckets)
