"""Host time against device time on CUDA, and what the recorder costs there.

    python benchmarks/gpu/run_ahead.py [RESULT.json]

For a loop that runs ahead of its GPU: what CUDA events measured, what the host's clock alone would
say, and what the ledger says; with batches at once, hidden behind the device, and late.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
JOB = ROOT / "tests" / "gpu" / "jobs" / "run_ahead.py"


def measure(wait_ms: int, steps: int) -> dict[str, float]:
    """One job under `headway run`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEADWAY_STRICT": "1"}
    with tempfile.TemporaryDirectory() as folder:
        truth = Path(folder) / "truth.json"
        command = [sys.executable, str(JOB), str(wait_ms), str(steps), str(truth)]
        out = Path(folder) / "run"
        headway = [sys.executable, "-m", "headway", "run", "-o", str(out), "--", *command]
        subprocess.run(headway, check=True, env=env)
        found = json.loads(truth.read_text())
        ledger = json.loads((out / "ledger.json").read_text())
        if os.environ.get("SHOW"):
            for path in sorted((out / "journal").glob("*.jsonl")):
                print(path.read_text()[-3000:])
    buckets = ledger["buckets"]
    return {
        "wait_ms": wait_ms,
        "steps": ledger["steps"],
        "device busy": found["device_busy"],
        "device stalled": found["stall"],
        "save, true": found["save"],
        "save, host clock": found["host_save"],
        "loop, host clock": found["host_loop"],
        "ledger effective": buckets.get("train.effective", 0.0),
        "ledger data_stall": buckets.get("waste.data_stall", 0.0),
        "ledger checkpoint_block": buckets.get("waste.checkpoint_block", 0.0),
        "ledger device_init": buckets.get("start.device_init", 0.0),
    }


def main() -> None:
    """Three rates of data, one table."""
    import torch

    rows = [measure(wait_ms, 60) for wait_ms in (0, 4, 60)]
    for key in rows[0]:
        print(f"{key:<26}" + "".join(f"{row[key]:>12.3f}" for row in rows))
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
    }
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
