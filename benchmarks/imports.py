"""CPU time to import each package that Headway can use, as docs/dependencies.md shows it.

    python benchmarks/imports.py        in an environment with the extras that are to be measured

CPU time of `python -c "import X"` less that of `python -c pass`, minima over rounds. Packages that
are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from importlib.metadata import version

from keep import keep

ROUNDS = 10
# By package: the module that Headway imports of it. Of plotly it only reads a file.
MODULES = {
    "rich": "rich.console",
    "jinja2": "jinja2",
    "torch": "torch",
    "numpy": "numpy",
    "fsspec": "fsspec",
    "zstandard": "zstandard",
    "isal": "isal.isal_zlib",
    "cryptography": "cryptography.hazmat.primitives.serialization",
    "pandas": "pandas",
    "torchrec": "torchrec",
    "onnxruntime": "onnxruntime",
    "onnxscript": "onnxscript",
    "pyarrow": "pyarrow",
    "duckdb": "duckdb",
    "ibis-framework": "ibis",
    "psycopg": "psycopg",
    "starlette": "starlette.applications",
    "uvicorn": "uvicorn",
    "mlflow-skinny": "mlflow",
    "tensorboard": "tensorboard.summary",
    "wandb": "wandb",
}


def cpu_ms(statement: str) -> float:
    """Of a fresh interpreter that runs it, with bytecode written; the least of all rounds."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(ROUNDS):
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", statement], env=env)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"`{statement}` failed")
        times.append((used.ru_utime + used.ru_stime) * 1000)
    return min(times)


def main() -> None:
    bare = cpu_ms("pass")
    print(f"{'python -c pass':<24}{bare:8.0f} ms")
    rows = {}
    for package, module in MODULES.items():
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            print(f"{package:<24} not installed")
            continue
        ms = cpu_ms(f"import {module}") - bare
        rows[package] = {"version": version(package), "ms": round(ms)}
        print(f"{package:<24}{ms:8.0f} ms  {rows[package]['version']}", flush=True)
    facts = {"machine": f"{os.cpu_count()} cores, {platform.machine()}"}
    keep("imports", {**facts, "python": platform.python_version(), "rows": rows})


if __name__ == "__main__":
    main()
