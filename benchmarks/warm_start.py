"""From the start of a job to its first step, cold and warm, and where that time goes.

python benchmarks/warm_start.py [--runs 5] [--only tiny] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from keep import keep

from headway.launch.attempt import BOOT
from headway.launch.warm import Warm

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
DLRM = str(ROOT / "examples" / "dlrm" / "train.py")
TINY = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DDP(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
if dist.is_initialized():
    dist.destroy_process_group()
"""
TWO = [TORCHRUN, "--standalone", "--nproc-per-node", "2"]
LITTLE = ["--steps", "3", "--save-every", "0", "--no-export", "--rows", "1000"]


def cases(folder: Path) -> dict[str, list[str]]:
    tiny = folder / "tiny.py"
    tiny.write_text(TINY)
    dlrm = [DLRM, *LITTLE, "--checkpoint-dir", str(folder / "checkpoints")]
    return {
        "tiny, one process": [sys.executable, str(tiny)],
        "tiny, torchrun with 2 ranks": [*TWO, str(tiny)],
        "dlrm compiled, one process": [sys.executable, *dlrm],
        "dlrm compiled, torchrun with 2 ranks": [*TWO, *dlrm],
    }


def environment(run: Path, launch: str, cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(BOOT),
        "HEADWAY_DIR": str(run / "journal"),
        "HEADWAY_LAUNCH": launch,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def measure(run: Path, command: list[str], runs: int) -> dict[str, Any]:
    """Cold twice, the first time for the compile cache; then warm, from one zygote."""
    (run / "journal").mkdir(parents=True)
    cache, quiet = run / "cache", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for index in range(runs + 1):
        launch, began = f"cold{index}", time.monotonic_ns()
        env = environment(run, launch, cache)
        subprocess.run(command, env=env, check=True, **quiet)  # type: ignore[call-overload]
        found["cold"].append(split(run, launch, began))
    del found["cold"][0]
    notes: list[str] = []
    warm = Warm(run, command, environment(run, "warm", cache), notes.append)
    began = time.monotonic_ns()
    warm.prepare()
    assert warm.ready(120), notes
    prepared = (time.monotonic_ns() - began) / 1e9
    nothing = os.open(os.devnull, os.O_WRONLY)
    for index in range(runs):
        time.sleep(4)  # for the spares
        launch, began = f"warm{index}", time.monotonic_ns()
        env = environment(run, launch, cache)
        options = {"stdout": nothing, "stderr": nothing}
        child = warm.spawn(
            command, env, own_group=True, pdeathsig=signal.SIGTERM, **options
        )
        assert child is not None, notes
        while child.poll() is None:
            time.sleep(0.005)
        assert child.returncode == 0, notes
        found["warm"].append(split(run, launch, began))
    warm.close()
    return {
        "zygote": prepared,
        "left_out": warm.memory.left_out,
        "notes": notes + told_notes(run),
        **{how: middle(rows) for how, rows in found.items()},
        "all": {how: [row["first step"] for row in rows] for how, rows in found.items()},
    }


def middle(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row.get(key, 0.0) for row in rows) for key in rows[0]}


def split(run: Path, launch: str, began: int) -> dict[str, float]:
    """Milliseconds from the start to each point of rank 0's way to its first step."""
    for path in (run / "journal").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        head = lines[0]
        steps = [line for line in lines if line["ev"] == "steps"]
        if head["launch"] != launch or not steps or head["local_rank"]:
            continue
        row = {"rank begins": since(began, head["begin"])}
        for line in lines:
            if line.get("name") == "process_group_init" and line["ev"] == "open":
                row["process group begins"] = since(began, line["t"])
            if line.get("name") == "train_module_creation" and line["ev"] == "open":
                row.setdefault("model begins", since(began, line["t"]))
        row["imports, in ms"] = sum(spans(lines, "import", "compile_import")) / 1e6
        row["compile, in ms"] = sum(spans(lines, "compile")) / 1e6
        row["first step"] = since(began, steps[0]["end"])
        return row
    raise SystemExit(f"{launch} made no step")


def spans(lines: list[dict[str, Any]], *names: str) -> list[int]:
    opened = {line["id"]: line for line in lines if line["ev"] == "open"}
    closed = [(opened.get(line["id"]), line) for line in lines if line["ev"] == "close"]
    found = [end["t"] - start["t"] for start, end in closed if start and start["name"] in names]
    over = [line for line in lines if line["ev"] == "span" and line["name"] in names]
    return found + [line["end"] - line["t"] for line in over]


def since(began: int, t: int) -> float:
    return (t - began) / 1e6


def told_notes(run: Path) -> list[str]:
    lines = (line for path in (run / "journal").glob("*.jsonl") for line in open(path))
    return sorted({json.loads(line)["text"] for line in lines if '"ev":"note"' in line})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, (case, command) in enumerate(cases(folder).items()):
            if args.only not in case:
                continue
            rows[case] = found = measure(folder / str(index), command, args.runs)
            cold, warm = found["cold"]["first step"], found["warm"]["first step"]
            print(f"{case}: cold {cold:.0f} ms, warm {warm:.0f} ms, 1/{cold / warm:.1f}")
            for how in ("cold", "warm"):
                print("   ", how, {key: round(value) for key, value in found[how].items()})
            print("    zygote", round(found["zygote"], 2), "s", found["left_out"], found["notes"])
    if args.keep:
        keep("warm_start", {"rows": rows})


if __name__ == "__main__":
    main()
