"""Many writers at once, killed at any instant, beside a compaction that is killed too."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.fleet.compact import compact
from headway.fleet.engine import ask
from headway.fleet.store import Store

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 12
ENDLESS = 10**6
# Writes runs, each twice: as it goes on, and when it has ended. What was taken is noted, durably.
WRITER = """
import os, sys
from headway.fleet.store import Store
from tests.unit.fleet.made import rows_of

store, name, told = Store(sys.argv[1]), sys.argv[2], os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[4])):
    for hours in (1, 30):
        store.write(rows_of(f"{name}-{number}", hours=hours), as_of=float(hours))
        os.write(told, f"{name}-{number} {hours}\\n".encode())
        os.fsync(told)
"""
COMPACTOR = """
import sys
from headway.fleet.compact import compact
from headway.fleet.store import Store

print("ready", flush=True)
sys.stdin.readline()
while True:
    if Store(sys.argv[1]).exists():
        compact(Store(sys.argv[1]), grace_s=2.0)
"""


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes; none of them outlives the test."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(script: str, *words: str) -> subprocess.Popen[bytes]:
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", script, *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        return made[-1]

    yield begin
    for process in made:
        with process:
            process.kill()


def go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"\n")
    process.stdin.flush()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    "writers",
    [
        pytest.param(10, marks=pytest.mark.timeout(120)),
        pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_nothing_taken_is_lost_and_nothing_is_doubled(
    start: Start, tmp_path: Path, writers: int
) -> None:
    url, chance = str(tmp_path / "store"), random.Random(writers)
    told = [tmp_path / f"told-{number}" for number in range(writers)]
    doomed = chance.sample(range(writers), writers // 2)
    rounds = [ENDLESS if number in doomed else ROUNDS for number in range(writers)]
    all_of_them = [
        start(WRITER, url, f"w{n}", str(told[n]), str(rounds[n])) for n in range(writers)
    ]
    compactor = start(COMPACTOR, url)
    for process in (*all_of_them, compactor):
        go(process)
    for number in doomed:  # wherever each of them is
        time.sleep(chance.uniform(0.0, 0.2))
        kill(all_of_them[number])
        if number % 4 == 0:
            kill(compactor)
            compactor = start(COMPACTOR, url)
            go(compactor)
    for number, process in enumerate(all_of_them):
        assert process.wait(timeout=500) == (-signal.SIGKILL if number in doomed else 0)
    kill(compactor)
    taken: dict[str, int] = {}
    for file in told:
        for line in file.read_text().splitlines() if file.exists() else ():
            run, hours = line.split()
            taken[run] = int(hours)
    assert sum(hours == 30 for hours in taken.values()) >= ROUNDS * (writers - writers // 2)
    check(Store(url), taken)
    for _ in range(2):
        compact(Store(url), grace_s=0.0)
    check(Store(url), taken)


def check(store: Store, taken: dict[str, int]) -> None:
    runs = ask(store, lambda tables: tables["runs"].select("run_id", "wall_s")).rows
    found = Counter(runs["run_id"].to_pylist())
    assert set(found.values()) == {1} and taken.keys() <= found.keys()
    hours = {run: round(wall / 3600) for run, wall in zip(*_columns(runs), strict=True)}
    assert all(hours[run] >= known for run, known in taken.items())
    for table, rows_an_hour in (("hours", 2), ("buckets", 4)):
        counted = ask(store, lambda tables, name=table: tables[name].run_id.value_counts()).rows
        expected = {run: rows_an_hour * count for run, count in hours.items()}
        assert dict(zip(*_columns(counted), strict=True)) == expected


def _columns(rows: object) -> list[list[object]]:
    return [column.to_pylist() for column in rows.columns]  # type: ignore[attr-defined]
