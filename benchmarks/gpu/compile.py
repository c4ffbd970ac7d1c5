"""benchmarks/compile.py on CUDA: one repetition of each row, in less than ten minutes.

python benchmarks/gpu/compile.py RESULT.json [MODEL...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parent.parent / "compile.py"


def main() -> None:
    out, *models = sys.argv[1:]
    words = ["--device", "cuda", "--repeat", "1", "--out", out]
    words += ["--models", ",".join(models or ["dlrm", "transformer"])]
    subprocess.run([sys.executable, str(BENCHMARK), *words], check=True)


if __name__ == "__main__":
    main()
