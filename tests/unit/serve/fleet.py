"""A small store of made-up runs, one of them with a hostile name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from headway.fleet.store.parquet import Store
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.serve.search import Regressions, Search
from tests.unit.fleet.store_rows import START, merge_rows, run_rows

EVIL = "<script>alert(1)</script>"
DAY = timedelta(days=1)
RUNS = 12


def make(folder: Path) -> Store:
    """Twelve runs on twelve days, of two teams; every third was preempted once, one is running."""
    store = Store(str(folder))
    store.write(merge_rows(*(_run(number) for number in range(RUNS))))
    return store


class FinishedSearch(Search):
    """A finished search without findings."""

    def __init__(self) -> None:
        super().__init__("")

    def result(self, version: str) -> Regressions | None:
        return {"regressions": [], "lemons": [], "running": [], "slices": 2, "jobs": RUNS}


def _run(number: int) -> dict[str, list[dict[str, Any]]]:
    run_id = f"run{number:09d}"
    team = "ads" if number % 2 else "<b>search</b>"
    start = START + number * DAY
    leaves = {
        "start.pt2_compile": 300.0,
        "start.hardware_setup": 60.0,
        "waste.checkpoint_block": 40.0,
        LOST: 200.0 if number % 3 == 0 else 0.0,
        EFFECTIVE: 3000.0,
    }
    rows = run_rows(
        run_id,
        start=start,
        hours=2,
        accelerators=2 + number,
        leaves={leaf: seconds for leaf, seconds in leaves.items() if seconds},
        running=number == RUNS - 1,
        team=team,
        model="dlrm",
        torch="2.13.0" if number < 6 else "2.14.0",
        time_to_start_s=360.0,
        outcome="running" if number == RUNS - 1 else "completed",
    )
    rows["runs"][0]["run"] = EVIL if number == 1 else f"night-{number}"
    rows["runs"][0]["started_at"] = start
    rows["attempts"][0]["time_to_recover_s"] = 90.0 if number % 3 == 0 else None
    key = {"run_id": run_id, "attempt": 0, "accelerators": 2 + number}
    if number % 3 == 0:
        rows["runs"][0]["failures"] = 1
        rows["failures"] = [
            {
                **key,
                "at": start + timedelta(minutes=30),
                "category": "preemption" if number else EVIL,
                "owner": "scheduler",
                "retry": "yes",
                "host": f"node-{number}",
                "evidence": "<img src=x onerror=alert(2)>",
                "lost_s": 200.0,
                "time_to_recover_s": 90.0,
            }
        ]
    rows["checkpoints"] = [
        {**key, "at": start, "step": 100, "level": "disk", "blocked_s": 20.0, "durable_s": 30.0}
    ]
    compiled = {"recompile": False, "cached": False, "ranks": 1, "times": 1, "seconds": 300.0}
    rows["compiles"] = [{**key, "at": start, "place": "train.py:1", **compiled}]
    rows["nodes"] = [
        {
            **key,
            "host": f"node-{number}",
            "started_at": start,
            "ended_at": start + timedelta(hours=2),
            "wall_s": 7200.0,
            "accelerator_s": 7200.0 * (2 + number),
            "effective_s": 6000.0 * (2 + number),
            "failures": int(number % 3 == 0),
        }
    ]
    return rows
