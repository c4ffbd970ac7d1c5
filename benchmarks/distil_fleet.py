"""Distils the tables that `headway fleet simulate` draws from, out of public traces.

The traces are not part of the package; src/headway/sim/fleet/NOTICE.md names them.

    python benchmarks/distil_fleet.py FOLDER_WITH_THE_TRACES
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).resolve().parent.parent / "src/headway/sim/fleet/tables.json"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
LEVELS = [0, 0.01, 0.025, *(round(0.05 * i, 2) for i in range(1, 20)), 0.975, 0.99, 0.999, 1]
FEW = 100  # jobs: a size with fewer takes the durations of the sizes from the one below it on
# What a fault of the StepFun trace is called in Headway's taxonomy.
FAULTS = {
    "GPU": "gpu_hardware",
    "Parameter Plane Cable": "network",
    "NIC": "network",
    "File System": "storage",
    "Unknown Error": "unknown",
}


def philly(folder: Path) -> dict[str, Any]:
    """Sizes, durations by size, and arrivals by hour of the week."""
    with gzip.open(folder / "philly/philly_jobs.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    gpus = np.array([int(row["num_gpus"]) for row in rows])
    seconds = np.array([float(row["duration"]) for row in rows])
    nearest = np.array(SIZES)[np.abs(np.log2(gpus)[:, None] - np.log2(SIZES)).argmin(axis=1)]
    durations = []
    for index, size in enumerate(SIZES):
        chosen = nearest == size
        if chosen.sum() < FEW:
            chosen = nearest >= SIZES[index - 1]
        durations.append([round(float(q), 1) for q in np.quantile(seconds[chosen], LEVELS)])
    when = (datetime.datetime.fromisoformat(row["timestamp"]) for row in rows)
    arrivals = Counter(moment.weekday() * 24 + moment.hour for moment in when)
    return {
        "sizes": list(SIZES),
        "jobs_by_size": [int((nearest == size).sum()) for size in SIZES],
        "duration_levels": LEVELS,
        "durations_s": durations,
        "jobs_by_hour_of_week": [arrivals[hour] for hour in range(168)],
    }


def faults(folder: Path) -> dict[str, Any]:
    """How often a server breaks, and of what."""
    with gzip.open(folder / "fault_trace/fault_trace.json.gz", "rt") as file:
        events = json.load(file)
    begun = [event for event in events if event["event_type"] == "fault_start"]
    days = max(event["event_time"] for event in events)
    kinds = Counter(FAULTS.get(one["fault_type"]["Class"], "node_failure") for one in begun)
    return {
        "per_node_day": round(len(begun) / (400 * days), 6),
        "kinds": dict(sorted(kinds.items())),
    }


def spot(folder: Path) -> dict[str, Any]:
    """How often a spot machine is taken away, per hour that one is held."""
    taken, held = 0, 0.0
    for name in ("g4dn", "p3"):
        lost, hours = _events(folder / f"spot/{name}-trace.csv")
        taken, held = taken + lost, held + hours
    for name in ("gcp-a100x1-east1b", "gcp-v100x1-east1c"):
        lost, hours = _counts(folder / f"spot/{name}.txt")
        taken, held = taken + lost, held + hours
    return {"per_node_hour": round(taken / held, 4)}


def _events(path: Path) -> tuple[int, float]:
    rows = [(int(ms), what, node) for ms, what, node in csv.reader(path.open())]
    up: dict[str, int] = {}
    taken, held = 0, 0
    for ms, what, node in rows:
        if what == "add":
            up[node] = ms
        elif node in up:
            held += ms - up.pop(node)
            taken += 1
    held += sum(rows[-1][0] - ms for ms in up.values())
    return taken, held / 3_600_000


def _counts(path: Path) -> tuple[int, float]:
    moments, alive = [], []
    for date, clock, count in csv.reader(path.open()):
        moments.append(datetime.datetime.fromisoformat(f"{date.strip()}T{clock.strip()}"))
        alive.append(int(count))
    hours = np.diff([moment.timestamp() for moment in moments]) / 3600
    return int(np.maximum(-np.diff(alive), 0).sum()), float((np.array(alive[:-1]) * hours).sum())


def outcomes(folder: Path) -> dict[str, float]:
    """How the jobs of Philly ended."""
    with (folder / "quota/acme_cluster_summary.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == "Philly")
    return {
        "completed": float(row["complete_rate_gpu"]),
        "stopped": float(row["cancel_rate_gpu"]),
        "failed": float(row["fail_rate_gpu"]),
    }


def main(folder: Path) -> None:
    tables = {
        "philly": philly(folder),
        "faults": faults(folder),
        "spot": spot(folder),
        "outcomes": outcomes(folder),
    }
    text = json.dumps(tables, indent=1)
    TARGET.write_text(_short(text) + "\n")
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")


def _short(text: str) -> str:
    """Lists of numbers on one line each."""
    import re

    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
