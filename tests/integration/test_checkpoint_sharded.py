"""Tables that are cut by rows, in real ranks: written by rows, and back on any number of ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.store.layout import delta_tables
from headway.checkpoint.store.store import Store
from tests.integration.jobs import launched

pytestmark = pytest.mark.timeout(150)
JOB = Path(__file__).parent / "checkpointed" / "sharded.py"
SECOND = ("model.weight[151, 0]", "optimizer.state.model.weight.sum[151, 0]")
FIRST = ("model.weight", "optimizer.state.model.weight.sum")


def run(folder: Path, *words: str, ranks: int = 1, store: str = "store") -> list[dict[str, Any]]:
    """One training; what each rank has told."""
    launcher, env = launched(ranks, "", ())
    command = [*launcher, str(JOB), str(folder / store), str(folder / "out"), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(ranks)]


def state(told: dict[str, Any]) -> tuple[str, str]:
    return told["table"], told["sums"]


def by_rows(folder: Path) -> list[list[tuple[str, ...]]]:
    """Of each checkpoint, the newest first, what each rank has written by rows."""
    found = Store(folder / "store").checkpoints()
    return [
        [tuple(delta_tables(file)) for file in one.manifest.files if file.name != ".metadata"]
        for one in found
    ]


@pytest.mark.slow
def test_shards_are_written_by_rows_and_come_back_in_one_piece(tmp_path: Path) -> None:
    saved = run(tmp_path, "--steps", "3", ranks=2)
    assert by_rows(tmp_path) == [[FIRST, SECOND]] * 2 + [[(), ()]]
    (one,) = run(tmp_path, "--kind", "plain")
    assert one["from"] == 3 and state(one) == state(saved[0])


@pytest.mark.slow
def test_a_shard_may_be_whole_where_another_is_rows(tmp_path: Path) -> None:
    words = ("--kind", "sharded_tensor", "--hot", "1")
    saved = run(tmp_path, "--steps", "3", *words, ranks=2)
    assert by_rows(tmp_path) == [[FIRST, ()]] * 2 + [[(), ()]]
    (one,) = run(tmp_path, "--kind", "plain")
    assert one["from"] == 3 and state(one) == state(saved[0])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "other"), [("dtensor", "sharded_tensor"), ("plain", "dtensor")])
def test_another_number_of_ranks_has_the_same_bits(kind: str, other: str, tmp_path: Path) -> None:
    saved = run(tmp_path, "--steps", "4", "--kind", kind, ranks=1 if kind == "plain" else 2)
    again = run(tmp_path, "--kind", other, ranks=3)
    assert {one["from"] for one in again} == {4}
    assert {state(one) for one in again} == {state(saved[0])}


@pytest.mark.slow
def test_a_training_goes_on_from_rows_as_if_never_stopped(tmp_path: Path) -> None:
    run(tmp_path, "--steps", "3", ranks=2)
    again = run(tmp_path, "--steps", "5", ranks=2)
    right = run(tmp_path, "--steps", "5", ranks=2, store="whole")
    assert again[0]["from"] == 3 and state(again[0]) == state(right[0])


@pytest.mark.slow
def test_what_one_rank_alone_has_of_an_optimizer_comes_back_on_all(tmp_path: Path) -> None:
    launcher, env = launched(2, "", ())
    for words in (["--step"], []):
        job = [str(JOB.with_name("experts.py")), str(tmp_path / "store"), str(tmp_path / "out")]
        command = [*launcher, *job, *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        kept = json.loads((tmp_path / f"out.{rank}").read_text())
        assert set(kept) == {"0", "1"} and all(kept.values())
