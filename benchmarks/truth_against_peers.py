"""The same thirteen jobs with known truth, told by Headway and by ml-goodput-measurement.

The peer runs in an environment of its own (peers.py), made at the first call. Results go to
benchmarks/results/truth_against_peers.json.

    python benchmarks/truth_against_peers.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from keep import keep  # noqa: E402
from peers import python  # noqa: E402
from tests.truth.timelines import TIMELINES, Timeline, journals  # noqa: E402

import headway  # noqa: E402


def ask_peer() -> dict[str, Any]:
    """Its version, and its result for each timeline."""
    timelines = json.dumps([dataclasses.asdict(timeline) for timeline in TIMELINES])
    script = ROOT / "benchmarks" / "in_venv_peers" / "ml_goodput.py"
    done = subprocess.run(
        [python(), str(script)], input=timelines, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def truth(timeline: Timeline) -> float:
    """New training as a share of the time from the first start to the last end, in percent."""
    lives = timeline.lives
    resumed = [life.resumed for life in lives if life.steps]
    new = 0.0
    for index, life in enumerate(life for life in lives if life.steps):
        keep = min(resumed[index + 1 :], default=None)
        paused = [(p.start, p.end) for p in life.pauses if p.name == "compile"]
        number = life.resumed
        for steps in life.steps:
            for place in range(steps.count):
                number += 1
                start = steps.start + place * steps.each
                inside = sum(e - s for s, e in paused if start <= s < start + steps.each)
                new += steps.each - inside if keep is None or number <= keep else 0
    return 100 * new / (lives[-1].end - lives[0].start)


def main() -> int:
    peer = ask_peer()
    rows = []
    print(f"{'':44} {'truth':>6} {'Headway':>8} {'sum':>5} {'ml-goodput':>11} {'sum':>5}")
    for timeline, theirs in zip(TIMELINES, peer["results"], strict=True):
        ledger = journals(timeline).ledger()
        total = 100 * sum(ledger.buckets.values()) / ledger.wall
        row = {
            "scenario": timeline.name,
            "truth": truth(timeline),
            "headway": {"ett": ledger.ett_percent, "sum": total},
            "ml_goodput_measurement": theirs,
        }
        rows.append(row)
        wrong = "" if abs(theirs["ett"] - row["truth"]) < 0.05 else "  wrong"
        print(
            f"{timeline.name:44} {row['truth']:6.1f} {ledger.ett_percent:8.1f} {total:5.0f} "
            f"{theirs['ett']:11.1f} {theirs['sum']:5.0f}{wrong}"
        )
    exact = sum(row["headway"]["ett"] == row["truth"] for row in rows)
    right = sum(abs(row["ml_goodput_measurement"]["ett"] - row["truth"]) < 0.05 for row in rows)
    print(f"exact: Headway {exact} of {len(rows)}; ml-goodput {right}, to 0.05 points")
    versions = {
        "headway": headway.__version__,
        "ml-goodput-measurement": peer["version"],
        "python": platform.python_version(),
    }
    machine = {"cpus": os.cpu_count(), "system": platform.system()}
    keep("truth_against_peers", {"versions": versions, "machine": machine, "rows": rows})
    return 0 if exact == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
