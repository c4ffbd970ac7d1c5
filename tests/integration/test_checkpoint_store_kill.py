"""kill -9 at any instant: only whole checkpoints are listed, and the newest told of is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.checkpoint.store.cleanup import sweep
from headway.checkpoint.store.store import Store

KILLS = 30
SIZE = 3 << 20
JOB = """
import sys
from headway.checkpoint.store.cleanup import Policy, retain
from headway.checkpoint.store.cleanup import sweep
from tests.unit.checkpoint.store.small_saves import save

store, life, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("up", flush=True)
sweep(store)
for number in range(10_000):
    save(store, number % 3, f"{life}-{number}", world=2, size=size)
    print(f"{life}-{number}", flush=True)
    retain(store, Policy(last=2))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_killed_at_any_instant(tmp_path: Path) -> None:
    chance = random.Random(3)
    told = ""
    for life in range(KILLS):
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path), f"l{life}", str(SIZE)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        if life % 3 == 0:  # or none might come through on a slow disk
            told = job.stdout.readline().strip()
        time.sleep(chance.uniform(0, 0.15))
        job.kill()
        lines = job.stdout.read().split()
        job.wait()
        job.stdout.close()
        told = lines[-1] if lines else told

        store = Store(tmp_path)
        for one in store.checkpoints():
            assert store.verify(one, "full") == ""
        found = store.latest_valid("full")
        assert found.notes == ()
        if told:
            assert found.checkpoint is not None
            newest = found.checkpoint.manifest.save_id
            assert order(newest) >= order(told)
    assert told, "at least one save came through"
    sweep(tmp_path)
    names = os.listdir(tmp_path)
    assert all(name in (".lock", "latest") or name.startswith("step-") for name in names), names


def order(save_id: str) -> tuple[int, int]:
    life, number = save_id.split("-")
    return int(life[1:]), int(number)
