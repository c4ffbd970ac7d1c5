"""Results that the documentation cites: written only when `--keep` is asked for."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def keep(name: str, result: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json with `--keep`; a test compares the docs with it."""
    if "--keep" in sys.argv:
        (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def machine() -> str:
    """Cores, and the GPU if there is one."""
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{os.cpu_count()} cores, {platform.machine()}{gpu}"
