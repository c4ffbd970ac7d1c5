"""What autotuning costs with every config and with the pruned set, and what that does to kernels.

    PYTHONPATH=$PWD/src python3 benchmarks/gpu/autotune.py [--out FILE] [--parts triton,compiled]

Each part runs twice, each time with empty caches: with every config, recorded; then with what
`headway autotune` keeps of them. The cost of a kernel of one's own is the wall time of its first
calls, with the compile of what is kept in it; that of a compiled model the seconds of tuning that
were recorded, as its first call holds the whole of torch.compile. The loss is of the config chosen
in the pruned run against the one chosen in the full run, timed turn by turn in one process; for
compiled models in two processes, each time as a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
JOB = ROOT / "tests" / "gpu" / "jobs" / "autotune.py"
COST, LOSS = 0.25, 0.02  # what must be reached


def headway(folder: Path, name: str, *words: str) -> str:
    """A command of Headway, with caches of its own."""
    caches = {"TRITON_CACHE_DIR": str(folder / f"triton-{name}")}
    caches["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"inductor-{name}")
    env = {**os.environ, **caches, "PYTHONPATH": str(ROOT / "src"), "HEADWAY_STRICT": "1"}
    command = [sys.executable, "-m", "headway", *words]
    done = subprocess.run(
        command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=300
    )
    print(done.stdout, flush=True)
    done.check_returncode()
    return done.stdout


def run(folder: Path, part: str, name: str, *flags: str, full: str = "") -> dict[str, Any]:
    """The job in one way; returns what it measured, and what the journal tells of it."""
    started = time.monotonic()
    truth = folder / f"{name}.json"
    command = [sys.executable, str(JOB), part, str(truth), *filter(None, [full])]
    headway(folder, name, "run", "-o", name, *flags, "--no-report", "--", *command)
    print(f"{part} {name}: {time.monotonic() - started:.1f} s in all", flush=True)
    return {"cases": json.loads(truth.read_text()), **events(folder / name)}


def events(folder: Path) -> dict[str, Any]:
    """Seconds of autotuning by kind, as recorded, and how often it was pruned."""
    told: dict[str, Any] = {"recorded_s": {}, "tuned": 0, "pruned": 0}
    for path in (folder / "journal").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["ev"] != "autotune":
                continue
            seconds = event["seconds"] + event.get("compiled", 0.0)
            told["recorded_s"][event["kind"]] = told["recorded_s"].get(event["kind"], 0) + seconds
            told["pruned" if len(event.get("c", ())) < event["of"] else "tuned"] += 1
    return told


def recorded(told: dict[str, Any]) -> float:
    """Seconds of all kinds."""
    return float(sum(told["recorded_s"].values()))


def measure(part: str) -> dict[str, Any]:
    """One part in both ways."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        full = run(folder, part, "full")
        headway(folder, "full", "autotune", "full")
        kept = json.loads((folder / "full" / "autotune.json").read_text())
        truth = str(folder / "full.json")
        pruned = run(folder, part, "pruned", "--autotune", "full", full=truth)
    rows = {}
    for case, after in pruned["cases"].items():
        before = full["cases"][case]
        rows[case] = {
            "full_s": round(before["first_s"], 3),
            "pruned_s": round(after["first_s"], 3),
            "full_ms": round(after["full_ms"], 5),
            "pruned_ms": round(after["ms"], 5),
            "slower": round(after["ms"] / after["full_ms"] - 1, 4),
        }
    cost = sum(row["pruned_s"] for row in rows.values())
    cost /= sum(row["full_s"] for row in rows.values())
    kernels = [
        {"name": one["name"], "kind": one["kind"], "configs": len(one["configs"])}
        | {"kept": len(one["kept"]), "keys": len(one["keys"])}
        for one in kept["kernels"]
    ]
    return {
        "cases": rows,
        "first_calls_share": round(cost, 4),
        "recorded_share": round(recorded(pruned) / recorded(full), 4),
        "worst_slower": max(row["slower"] for row in rows.values()),
        "full": {name: full[name] for name in ("recorded_s", "tuned", "pruned")},
        "pruned": {name: pruned[name] for name in ("recorded_s", "tuned", "pruned")},
        "kernels": kernels,
    }


def main() -> None:
    """All parts, one table each, and whether the targets are met."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--parts", default="triton,compiled")
    args = parser.parse_args()
    import torch

    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for part in args.parts.split(","):
        found = result[part] = measure(part)
        for case, row in found["cases"].items():
            print(
                f"{case:<24} first call {row['full_s']:8.2f} s -> {row['pruned_s']:8.2f} s   "
                f"kernel {row['full_ms']:.4f} -> {row['pruned_ms']:.4f} ms ({row['slower']:+.1%})"
            )
        share = found["first_calls_share" if part == "triton" else "recorded_share"]
        slower = found["worst_slower"]
        met = "met" if share <= COST and slower <= LOSS else "NOT met"
        print(f"{part}: {share:.1%} of the full cost, at most {slower:+.1%} slower: {met}")
        if args.out:  # each part at once: a later one may run out of time
            Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
