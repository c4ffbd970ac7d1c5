"""Ray Train: workers that Ray starts, a run that Ray resumes by its name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.programs.bench import HERE, Bench, Kill, left_over, same, slow, well

pytestmark = slow("ray", limit_s=1200)

EPOCHS, STEPS = 8, 32  # in all; of an epoch
# Its controller hears of a checkpoint some time after the worker has reported it, and its raylet
# may be the first to ask how a worker has ended.
EXPECTED: dict[str, Any] = {"steps": EPOCHS * STEPS, "every": STEPS, "late": 1, "told": False}


def program(root: Path, *words: str) -> Bench:
    return Bench(root, [sys.executable, str(HERE / "ray_train.py"), *words], leaves=["out"])


def test_ray(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    done = bench.auto(Kill(1, 70, STEPS), Kill(0, 100, STEPS), timeout=500)
    well(bench, done, kills=[1, 0], **EXPECTED)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(1, 100, STEPS), timeout=500)
    well(bench, again, kills=[1], **EXPECTED)
    assert same(weights(tmp_path), plain)


def test_ray_starts_its_workers_again_by_itself(tmp_path: Path) -> None:
    done = program(tmp_path, "3").auto(Kill(1, 70, STEPS), timeout=500)
    assert (done.code, done.killed) == (0, [1]), done.output[-6000:]
    first, second = done.ledger["attempts"]
    assert (first["outcome"], second["outcome"]) == ("failed", "completed")
    assert second["resumed_from"] in (STEPS, 2 * STEPS) and second["last_step"] == EPOCHS * STEPS
    assert done.boosters["restarts"]["state"] == "on"  # ours had nothing to do
    assert len(done.events("verdict")) == 0
    assert not left_over(tmp_path)


def weights(root: Path) -> object:
    import torch

    return torch.load(root / "out" / "final.pt", weights_only=True)
