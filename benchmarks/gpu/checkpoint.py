"""benchmarks/checkpoint.py on CUDA, in less than 250 seconds: 1 and 13 GB of state.

    python benchmarks/gpu/checkpoint.py RESULT.json [MEGABYTES...] [--ways NAME,...]

A step is filled up to 33 ms. For each size: what a save blocks and costs, in steps; when it is on
disk, and what share of the disk's speed that is; how long a new process takes to restore it from
the memory that outlived a kill -9, and from the disk. 40 GB (`40000`) and other ways (`"torch.save,
dcp async pinned,torch_checkpointing"`) take longer. `--device cpu` runs the same with small sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from checkpoint import measure

STEP_S = "0.033"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("megabytes", type=int, nargs="*", default=[1000, 13000])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", default="headway full")
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--limit-s", default="60", help="in which they begin; more make it surer")
    args = parser.parse_args()
    # Packages have their bytecode, as pip leaves it; an image that was made without it, and cannot
    # be written to, makes every import take several times as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows: list[dict[str, Any]] = []
    options = ["--device", args.device, "--step-s", STEP_S, "--limit-s", args.limit_s]
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        for megabytes in args.megabytes:
            ways = [way.strip() for way in args.ways.split(",")]
            for row in measure(megabytes, ways, options, args.saves, Path(folder)):
                rows.append(row)
                versions = {"python": platform.python_version(), "torch": version("torch")}
                machine = f"{os.cpu_count()} cores, {platform.machine()}, {row['device']}"
                result = {"machine": machine, "versions": versions, "rows": rows}
                args.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
