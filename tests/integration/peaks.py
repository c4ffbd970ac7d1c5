"""What a publish takes of memory, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headway.publish.store import SnapshotStore

PEAK = """
import sys
from headway.cli import main
from headway.publish.validate import _peak
code = main(sys.argv[1:])
print("peak", _peak())
sys.exit(code)
"""


def peaks(folder: Path, *words: str) -> tuple[float, float]:
    """Bytes of the publisher, and of the process that looks at what it made; to `store`."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    metrics = SnapshotStore(folder / "store").snapshot().manifest.targets["safetensors"].metrics
    return int(done.stdout.split("peak")[1]), metrics["peak_mb"] * 1e6
