"""From the start of a job to its first step, cold and warm, and where that time goes.

python benchmarks/warm_start.py [--runs 5] [--only tiny] [--keep]
"""

from __future__ import annotations

import argparse
import contextlib
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
from headway.launch.warm.booster import WarmStart

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
DLRM = str(ROOT / "examples" / "dlrm" / "train.py")
TINY = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
model.to(device)
if "RANK" in os.environ:
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    model = DDP(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(torch.randn(8, 64, device=device)).sum().backward()
    optimizer.step()
if dist.is_initialized():
    dist.destroy_process_group()
"""
LITTLE = ["--steps", "3", "--save-every", "0", "--no-export", "--rows", "1000"]


def cases(folder: Path, ranks: int) -> dict[str, list[str]]:
    all_ranks = [*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks)]
    tiny = folder / "tiny.py"
    tiny.write_text(TINY)
    dlrm = [DLRM, *LITTLE, "--checkpoint-dir", str(folder / "checkpoints")]
    return {
        "tiny, one process": [sys.executable, str(tiny)],
        f"tiny, torchrun with {ranks} ranks": [*all_ranks, str(tiny)],
        "dlrm compiled, one process": [sys.executable, *dlrm],
        f"dlrm compiled, torchrun with {ranks} ranks": [*all_ranks, *dlrm],
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
    """Cold twice, the first time for the compile cache; then warm, from one forkserver."""
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
    warm = WarmStart(run, command, environment(run, "warm", cache), notes.append)
    began = time.monotonic_ns()
    warm.prepare()
    warm.prepare()  # the second call means it, also for one process
    assert warm.ready(120), notes
    prepared = (time.monotonic_ns() - began) / 1e9
    state = look_at(next(iter(warm.pids())))
    nothing = os.open(os.devnull, os.O_WRONLY)
    for index in range(runs):
        time.sleep(4)  # for the idle children
        launch, began = f"warm{index}", time.monotonic_ns()
        env = environment(run, launch, cache)
        options = {"stdout": nothing, "stderr": nothing}
        child = warm.spawn(command, env, own_group=True, pdeathsig=signal.SIGTERM, **options)
        assert child is not None, notes
        while child.poll() is None:
            time.sleep(0.005)
        assert child.returncode == 0, notes
        found["warm"].append(split(run, launch, began))
    warm.close()
    return {
        "zygote": prepared,
        "state": state,
        "left_out": warm.state.left_out,
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
    texts = (path.read_text() for path in (run / "journal").glob("*.jsonl"))
    lines = (line for text in texts for line in text.splitlines() if '"ev":"note"' in line)
    return sorted({json.loads(line)["text"] for line in lines})


def look_at(pid: int) -> dict[str, Any]:
    """Threads of a process, and the devices that it has open."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(fd))
    devices = sorted({link for link in links if link.startswith("/dev/nv")})
    return {"threads": len(os.listdir(f"/proc/{pid}/task")), "devices": devices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, (case, command) in enumerate(cases(folder, args.ranks).items()):
            if args.only not in case:
                continue
            rows[case] = found = measure(folder / str(index), command, args.runs)
            cold, warm = found["cold"]["first step"], found["warm"]["first step"]
            print(f"{case}: cold {cold:.0f} ms, warm {warm:.0f} ms, 1/{cold / warm:.1f}")
            for how in ("cold", "warm"):
                print("   ", how, {key: round(value) for key, value in found[how].items()})
            print(
                "    forkserver", round(found["zygote"], 2), "s", found["state"], found["left_out"]
            )
            print("    notes", found["notes"], flush=True)
    if args.keep:
        keep("warm_start", {"rows": rows})


if __name__ == "__main__":
    main()
