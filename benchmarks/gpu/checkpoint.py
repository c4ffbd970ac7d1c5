"""benchmarks/checkpoint.py on CUDA: 1, 13 and 40 GB of state, with the limits of device and bus.

python benchmarks/gpu/checkpoint.py RESULT.json [MEGABYTES...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parent.parent / "checkpoint.py"


def main() -> None:
    out, *sizes = sys.argv[1:]
    words = [
        "--device",
        "cuda",
        "--out",
        out,
        "--megabytes",
        ",".join(sizes or ["1000", "13000", "40000"]),
    ]
    subprocess.run([sys.executable, str(BENCHMARK), *words], check=True)


if __name__ == "__main__":
    main()
