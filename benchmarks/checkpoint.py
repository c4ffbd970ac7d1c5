"""What a checkpoint costs the training, and when it is on disk: Headway and torch's own ways.

    python benchmarks/checkpoint.py [--megabytes 256,1024,2048] [--device cuda] [--dense]

Each row is a process of its own. The true cost is the call and what the steps take longer until
the checkpoint is on disk; beside it the limits, measured in the same run: one copy of the state in
warm memory, and one write of its bytes with fsync. The first save of a process is not counted: it
makes buffers that later ones use again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from jobs.checkpointing import WAYS
from keep import keep, machine

JOB = Path(__file__).parent / "jobs" / "checkpointing.py"
SOURCE = Path(__file__).parents[1] / "src"


class Failed(Exception):
    """That way does not work here."""


def run(way: str, megabytes: int, *options: str) -> dict[str, Any]:
    """One way, in a process."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder:
        command = [sys.executable, str(JOB), way, str(megabytes), f"{folder}/saves", *options]
        env = {**os.environ, "PYTHONPATH": str(SOURCE)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def summed_up(told: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Medians of the saves after the first."""
    saves = told["saves"][1:]
    call = statistics.median(save["call_s"] for save in saves)
    cost = statistics.median(save["call_s"] + max(0.0, save["longer_s"]) for save in saves)
    return {
        "call_s": call,
        "cost_s": cost,
        "cost_of_copy": cost / limits["copy_s"],
        "durable_s": statistics.median(save["durable_s"] for save in saves),
        "step_s": told["step_s"],
        "peak_mb": told["peak_mb"],
        "first_call_s": told["saves"][0]["call_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", default="256,1024,2048")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dense", action="store_true", help="no tables")
    parser.add_argument("--ways", default=",".join(way.replace(",", ";") for way in WAYS))
    parser.add_argument("--out", metavar="FILE", help="write the result there")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/checkpoint.json"
    )
    args = parser.parse_args()
    options = ["--device", args.device, *(["--dense"] if args.dense else [])]
    rows: list[dict[str, Any]] = []
    versions = {"python": platform.python_version(), "torch": version("torch")}
    result = {"machine": machine(), "versions": versions, "dense": args.dense, "rows": rows}
    for megabytes in map(int, args.megabytes.split(",")):
        limits = run("limits", megabytes, *options)
        copy, write = limits["copy_s"], limits["write_s"]
        print(
            f"{limits['bytes'] / 1e6:.0f} MB: copy {copy * 1e3:.0f} ms, write {write * 1e3:.0f} ms"
        )
        for way in (way.replace(";", ",") for way in args.ways.split(",")):
            try:
                row = summed_up(run(way, megabytes, *options), limits)
            except Failed as failed:
                rows.append({"megabytes": megabytes, "way": way, "failed": str(failed)})
                print(f"  {way:<30} fails: {failed}", flush=True)
                continue
            rows.append({"megabytes": megabytes, "way": way, "limits": limits, **row})
            print(
                f"  {way:<30} call {row['call_s'] * 1e3:7.1f} ms"
                f"   cost {row['cost_s'] * 1e3:7.1f} ms ({row['cost_of_copy']:.2f} of a copy)"
                f"   on disk {row['durable_s']:.2f} s"
                f"   step {row['step_s'] * 1e3:.1f} ms   memory {row['peak_mb']:.0f} MB",
                flush=True,
            )
            if args.out:
                Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    keep("checkpoint_dense" if args.dense else "checkpoint", result)


if __name__ == "__main__":
    main()
