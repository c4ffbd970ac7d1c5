"""How long a ledger takes, and how much memory: 8 ranks, up to a million steps each.

The journals are as the probe writes them: a line a second, with some short waits for data in it,
and a save every 1000 steps. Each figure comes from a fresh process that finds the files on disk.
Beside it stands the floor: one `json.loads` for each of the same lines, and nothing else.

    python benchmarks/ledger.py
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from keep import keep  # noqa: E402

from headway.journal import pulse  # noqa: E402
from headway.testing import FakeJournal, FakeRun  # noqa: E402

RANKS = 8
SAVE_EVERY = 1000
MUST_SECONDS, MUST_MEGABYTES = 2.0, 500.0
# Not ru_maxrss, in which a child begins with the memory of its parent.
PEAK = """
def peak():
    status = dict(line.split(":") for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) / 1024
"""
LOAD = """
import sys, time
begin = time.perf_counter()
import headway
ledger = headway.load(sys.argv[1]).ledger
seconds = time.perf_counter() - begin
assert sum(ledger.buckets.values()) == ledger.wall
assert ledger.steps == int(sys.argv[2]), ledger.steps
print(seconds, peak())
"""
FLOOR = """
import json, pathlib, sys, time
begin = time.perf_counter()
for path in pathlib.Path(sys.argv[1]).glob("journal/*.jsonl"):
    for line in path.read_bytes().splitlines():
        json.loads(line)
seconds = time.perf_counter() - begin
print(seconds, peak())
"""


def write_run(folder: Path, steps: int, step_ms: int) -> int:
    """A run of `steps` steps on all ranks; returns how many lines its journals have."""
    job = FakeRun()
    launcher = job.launcher(0)
    end = 0.0
    for number in range(RANKS):
        rank = job.process(1, rank=number, world=RANKS)
        rank.span("import", 1, 4, module="torch")
        rank.span("process_group_init", 4, 6)
        rank.span("train_module_creation", 6, 10)
        rank.span("data_wait", 10, 11)
        end = _train(rank, number, steps, step_ms / 1000)
        rank.exit(end + 1)
    launcher.exit(end + 2, code=0)
    job.write(folder)
    return sum(len(journal.lines) for journal in job.journals)


def _train(rank: FakeJournal, number: int, steps: int, each: float) -> float:
    """The first step alone, then a line a second, and a line before each save."""
    done, at = 1, 11 + each
    _line(rank, 1, 1, 0, at, 0)
    while done < steps:
        due = min(done + round(1 / each), steps, (done // SAVE_EVERY + 1) * SAVE_EVERY)
        wait = (done * 7919 + number * 104729) % 15_000_000 + 1_000_000  # 1 to 16 ms
        _line(rank, done + 1, due, at, at + (due - done) * each, wait)
        at += (due - done) * each
        done = due
        if done % SAVE_EVERY == 0:
            rank.span("checkpoint_save", at, at + 0.5, step=done, path=f"step-{done}")
            at += 0.5
    rank.cells[pulse.STEPS] = rank.steps = steps
    rank.cells[pulse.LAST_STEP] = rank.at(at)
    return at


def _line(rank: FakeJournal, first: int, last: int, start: float, end: float, wait: int) -> None:
    rank.lines.append(
        {
            "ev": "steps",
            "t": rank.at(start) if start else 0,
            "end": rank.at(end),
            "first": first,
            "last": last,
            "wait": wait,
            "batches": last - first + 1,
        }
    )


def measure(program: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak megabytes of the best of three fresh processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    found = []
    for _ in range(3):
        command = [sys.executable, "-c", PEAK + program, *arguments]
        text = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout
        seconds, megabytes = map(float, text.split())
        found.append((seconds, megabytes))
    return min(found)


def main() -> int:
    print(
        f"{'steps x ranks':>16} {'step':>7} {'lines':>9} {'ledger':>8} {'peak':>8}"
        f" {'json.loads':>11} {'ratio':>6}"
    )
    rows = []
    for step_ms in (10, 100):
        for steps in (100_000, 300_000, 1_000_000):
            with tempfile.TemporaryDirectory() as temporary:
                lines = write_run(Path(temporary), steps, step_ms)
                seconds, megabytes = measure(LOAD, temporary, str(steps))
                floor, _ = measure(FLOOR, temporary)
            rows.append(
                {
                    "steps": steps,
                    "ranks": RANKS,
                    "step_ms": step_ms,
                    "lines": lines,
                    "seconds": round(seconds, 3),
                    "peak_mb": round(megabytes, 1),
                    "json_loads_seconds": round(floor, 3),
                    "ratio": round(seconds / floor, 2),
                }
            )
            print(
                f"{steps:>12,} x {RANKS} {step_ms:>4} ms {lines:>9,} {seconds:>6.2f} s "
                f"{megabytes:>5.0f} MB {floor:>9.2f} s {seconds / floor:>6.2f}"
            )
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    keep("ledger", {"machine": machine, "rows": rows})
    worst = max(row["seconds"] for row in rows), max(row["peak_mb"] for row in rows)
    met = worst[0] <= MUST_SECONDS and worst[1] <= MUST_MEGABYTES
    verdict = "met" if met else "MISSED"
    print(f"must be within {MUST_SECONDS:.0f} s and {MUST_MEGABYTES:.0f} MB: {verdict}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
