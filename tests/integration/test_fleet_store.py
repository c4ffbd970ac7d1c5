"""Many writers at once, killed at any instant, beside a compaction that is killed too."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from headway.fleet.store.compaction import compact
from headway.fleet.store.parquet import Store
from headway.fleet.store.reader import run_query
from tests.support import wait_until
from tests.unit.fleet.store_rows import run_rows

pytestmark = pytest.mark.xdist_group("store-forks")
ROUNDS = 12
ENDLESS = 10**6


def write(url: str, name: str, told: Path, rounds: int) -> None:
    """Write runs, each twice: as it goes on, and when it has ended; note what was taken."""
    store, file = Store(url), os.open(told, os.O_WRONLY | os.O_CREAT)
    for number in range(rounds):
        for hours in (1, 30):
            store.write(run_rows(f"{name}-{number}", hours=hours), as_of=float(hours))
            os.write(file, f"{name}-{number} {hours}\n".encode())
            os.fsync(file)


def compact_on_and_on(url: str, begun: Path) -> None:
    begun.touch()
    while True:
        if Store(url).exists():
            compact(Store(url), grace_s=2.0)


Start = Callable[..., ForkServerProcess]


@pytest.fixture
def start(store_forks: ForkServerContext) -> Iterator[Start]:
    """Starts processes; none of them outlives the test."""
    made: list[ForkServerProcess] = []

    def begin(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
        made.append(store_forks.Process(target=target, args=arguments))
        made[-1].start()
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.join()


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()


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
    begun = tmp_path / "begun"
    all_of_them = [start(write, url, f"w{n}", told[n], rounds[n]) for n in range(writers)]
    compactor = start(compact_on_and_on, url, begun)
    wait_until(lambda: all(file.exists() for file in (*told, begun)))
    for number in doomed:  # wherever each of them is
        time.sleep(chance.uniform(0.0, 0.2))
        kill(all_of_them[number])
        if number % 4 == 0:
            kill(compactor)
            begun.unlink()
            compactor = start(compact_on_and_on, url, begun)
            wait_until(begun.exists)
    for number, process in enumerate(all_of_them):
        process.join(500)
        assert process.exitcode == (-signal.SIGKILL if number in doomed else 0)
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
    runs = run_query(store, lambda tables: tables["runs"].select("run_id", "wall_s")).rows
    found = Counter(runs["run_id"].to_pylist())
    assert set(found.values()) == {1} and taken.keys() <= found.keys()
    hours = {run: round(wall / 3600) for run, wall in zip(*_columns(runs), strict=True)}
    assert all(hours[run] >= known for run, known in taken.items())
    for table, rows_an_hour in (("hours", 2), ("buckets", 4)):
        counted = run_query(
            store, lambda tables, name=table: tables[name].run_id.value_counts()
        ).rows
        expected = {run: rows_an_hour * count for run, count in hours.items()}
        assert dict(zip(*_columns(counted), strict=True)) == expected


def _columns(rows: object) -> list[list[object]]:
    return [column.to_pylist() for column in rows.columns]  # type: ignore[attr-defined]
