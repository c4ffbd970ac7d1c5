"""Time to Start, one stage after the other against side by side, on examples/dlrm.

    python benchmarks/start.py [--ranks 1,2] [--warmups 0,5,20] [--caches cold,warm]

`train_headway.py` with its stages one after the other and compiled by its first batch
(`--no-overlap`), as everybody starts, and side by side, with the compile ahead of the data. Clicks
come after the same warm-up in both. For each: Headway's ledger of the run, by bucket; beside it the
least that its stages can take in any order, and how long after the first batch training began. Each
job compiles all anew (cold), or has Headway's compile cache, which the same job has filled (warm).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from keep import keep, machine

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "dlrm" / "train_headway.py"
WAYS = {"one by one": ["--no-overlap"], "side by side": []}
STEPS = 10


def run(
    way: list[str], ranks: int, warmup: float, store: Path | None, folder: Path
) -> dict[str, Any]:
    """One run, from its ledger; `store` is a compile cache of Headway."""
    job = [str(SCRIPT), *way, "--steps", str(STEPS), "--no-export"]
    job += ["--save-every", "0", "--data-warmup", str(warmup), "--checkpoint-dir", "saves"]
    launcher = [sys.executable]
    if ranks > 1:
        module = ["-m", "torch.distributed.run", "--standalone"]
        launcher += [*module, "--nproc-per-node", str(ranks)]
    headway = [sys.executable, "-m", "headway", "run", "-o", "run", "--force", "--no-report"]
    if store is not None:
        headway += ["--compile-cache", str(store)]
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*headway, "--", *launcher, *job], cwd=folder, env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(job)} failed:\n{done.stdout}\n{done.stderr}")
    ledger: dict[str, Any] = json.loads((folder / "run" / "ledger.json").read_text())
    graph = (ledger.get("stages") or [{}])[0]
    first = {row["name"]: row["end_s"] for row in graph.get("stages", [])}
    return {
        "time_to_start_s": ledger["time_to_start_s"],
        "buckets": {k: v for k, v in ledger["buckets"].items() if k.startswith("start.")},
        "stages_s": graph.get("took_s"),
        "bound_s": graph.get("bound_s"),
        "after_first_batch_s": _after(graph, first),
    }


def _after(graph: dict[str, Any], ends: dict[str, float]) -> float | None:
    """From the first real batch to the start of training."""
    batch = ends.get("get_first_batch_data")
    return None if batch is None else max(ends.values()) - batch


def measure(ranks: int, warmup: float, cache: str, filled: Path) -> dict[str, Any]:
    """Both ways; `filled` is a store that this job has filled."""
    rows = {}
    for name, way in WAYS.items():
        with tempfile.TemporaryDirectory(prefix="bench-start-") as where:
            folder = Path(where)
            rows[name] = run(way, ranks, warmup, filled if cache == "warm" else None, folder)
        told = rows[name]
        bound = f", bound of its stages {told['bound_s']:.1f} s" if told["bound_s"] else ""
        print(
            f"  {ranks} ranks, data after {warmup:g} s, {cache} cache, {name}: "
            f"{told['time_to_start_s']:.1f} s{bound}",
            flush=True,
        )
    return {"ranks": ranks, "warmup_s": warmup, "cache": cache, **rows}


def show(rows: list[dict[str, Any]]) -> None:
    print("\nranks  data  cache   one by one   side by side   ratio   stages   bound   after batch")
    for row in rows:
        serial, side = row["one by one"], row["side by side"]
        ratio = side["time_to_start_s"] / serial["time_to_start_s"]
        print(
            f"{row['ranks']:>5} {row['warmup_s']:>5g}  {row['cache']:<6}"
            f"{serial['time_to_start_s']:>10.1f} s {side['time_to_start_s']:>12.1f} s {ratio:>7.2f}"
            f" {side['stages_s']:>7.2f} {side['bound_s']:>7.2f} {side['after_first_batch_s']:>8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--warmups", default="0,5,20")
    parser.add_argument("--caches", default="cold,warm")
    parser.add_argument("--out", metavar="FILE", help="write the result there")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/start.json")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    result = {
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "rows": rows,
    }
    for ranks in map(int, args.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="bench-start-") as where:
            filled = Path(where) / "store"
            for cache in args.caches.split(","):
                if cache == "warm":
                    run(WAYS["side by side"], ranks, 0.0, filled, Path(where))
                for warmup in map(float, args.warmups.split(",")):
                    rows.append(measure(ranks, warmup, cache, filled))
                    if args.out:
                        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    show(rows)
    keep("start", result)


if __name__ == "__main__":
    main()
