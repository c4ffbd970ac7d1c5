"""ETT with a kill a minute and a state above 10 GB: torch.save and torchrun against Headway.

    python benchmarks/gpu/demo.py RESULT.json [--kills 3] [--every 60] [--gigabytes 11]

Both ways run for the same time (`kills` and a half intervals) and are killed with SIGKILL at the
same moments, whatever they do then. Plain: torchrun restarts, torch.save at Young's interval for
what its own saves cost. Headway: warm restarts, snapshots in memory, checkpoints on disk. Needs
torch and the standard library. `--device cpu --gigabytes 0.02 --width 256 --batch 64 --every 15`
tries the same on any machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
JOB = Path(__file__).with_name("demo_job.py")
WAYS = ("plain", "headway")
WARM_UP = "import torch._dynamo, torch.distributed.run, torch.distributed.checkpoint"
HEADWAY = [sys.executable, "-m", "headway", "run", "--no-report"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]


def measure(way: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One way, killed again and again; its account by Headway's ledger."""
    from headway.run import load

    run, job = folder / way, folder / f"{way}-job"
    wall = args.every * (args.kills + 0.5)
    flags = {"gigabytes": args.gigabytes, "width": args.width, "batch": args.batch}
    words = ["--way", way, "--until", str(time.time() + wall), "--mtbf", str(args.every)]
    words += [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    restarts = str(args.kills + 2)
    ours = ["--restarts", restarts, "--warm"] if way == "headway" else []
    theirs = ["--max-restarts", restarts] if way == "plain" else []
    command = [*HEADWAY, "-o", str(run), *ours, "--", *TORCHRUN, *theirs]
    command += [str(JOB), str(job), "--device", args.device, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with (folder / f"{way}.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        killed = kill(process, job / "pid", args)
        code = process.wait()
    if code:
        tail = (folder / f"{way}.log").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{tail}\ndemo: {way} ended with exit code {code}")
    told = load(run).to_dict()
    kept = ("wall_s", "ett_percent", "steps", "buckets", "time_to_start_s", "time_to_recover_s")
    resumed = [one["resumed_from"] for one in told["attempts"]]
    row = {"way": way, "kills": killed, **{name: told[name] for name in kept}}
    return {**row, "resumed_from": resumed, "checkpoints": told["checkpoints"]}


def kill(process: subprocess.Popen[bytes], pid: Path, args: argparse.Namespace) -> int:
    """At each full interval from the start on; how many were hit."""
    began, hit = time.monotonic(), 0
    for number in range(1, args.kills + 1):
        due = began + number * args.every
        while time.monotonic() < due and process.poll() is None:
            time.sleep(0.05)
        with contextlib.suppress(OSError, ValueError):  # it is between two lives
            os.kill(int(pid.read_text()), signal.SIGKILL)
            hit += 1
    return hit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    flag = parser.add_argument
    flag("result", type=Path)
    flag("--kills", type=int, default=3)
    flag("--every", type=float, default=60.0, help="seconds between two kills")
    flag("--gigabytes", type=float, default=11.0, help="of weights and moments")
    flag("--width", type=int, default=8192)
    flag("--batch", type=int, default=4096)
    flag("--device", default="cuda")
    flag("--ways", default=",".join(WAYS))
    args = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    if args.device == "cuda":
        import torch

        machine += f", {torch.cuda.get_device_name()}"
    versions = {"python": platform.python_version(), "torch": version("torch")}
    about = {name: getattr(args, name) for name in ("kills", "every", "gigabytes")}
    rows = []
    # Bytecode as pip leaves it: an image that cannot be written to would make imports slow.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="demo-gpu-") as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        subprocess.run([sys.executable, "-c", WARM_UP], check=True)  # for whoever comes first
        for way in args.ways.split(","):
            rows.append(measure(way, args, Path(folder)))
            print(f"{way}: ETT {rows[-1]['ett_percent']:.1f} %", flush=True)
            result = {"machine": machine, "versions": versions, **about, "rows": rows}
            args.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
