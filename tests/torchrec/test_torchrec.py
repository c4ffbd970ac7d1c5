"""The TorchRec adapter beside a real TorchRec, on real ranks; `make test-torchrec`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torchrec") is None, reason="torchrec: make test-torchrec"),
    pytest.mark.timeout(240),
]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
JOB = Path(__file__).parent / "job.py"


def run(folder: Path, ranks: int, *words: object) -> list[Any]:
    """What each rank says."""
    done = subprocess.run(
        [*TORCHRUN, f"--nproc-per-node={ranks}", str(JOB), *map(str, words)],
        env={**os.environ, "FOLDER": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "tables", "kernel"), [(2, 24, "fused"), (2, 12, "dense"), (4, 24, "fused")]
)
def test_no_table_is_gathered_and_the_metadata_is_the_same(
    tmp_path: Path, ranks: int, tables: int, kernel: str
) -> None:
    for said in run(tmp_path, ranks, "equal", tables, kernel):
        assert said["types"] == ["column_wise", "row_wise", "table_wise"]
        assert said["gathers"] == [tables, 0]
        assert said["all"] == {"barrier": 1}  # of the test itself
        assert said["same"] and said["forward"] and said["restored"]
        assert said["dtypes"] == ["torch.float16", "torch.float32"]


def test_200_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(tmp_path, 4, "equal", 200, "fused")
    assert all(one["gathers"] == [200, 0] and one["same"] for one in said)
    before, after = (max(one["seconds"][i] for one in said) for i in (0, 1))
    with capsys.disabled():
        print(f"\n200 tables, 4 ranks: {before:.2f} s gathered, {after:.2f} s without")


def test_what_torchrec_makes_without_gathering_stays_as_it_is(tmp_path: Path) -> None:
    for said in run(tmp_path, 2, "bags", 6):
        assert said == {"same": True, "calls": {"barrier": 1}}


def test_plans_outlive_a_restart(tmp_path: Path) -> None:
    said = run(tmp_path, 2, "cached", 12)
    assert [one["equal"] for one in said] == [[True] * 4] * 2
    assert all(one["order"] == [True] for one in said)
    # made; found; damaged, so made; another batch size; other tables. By rank 0 alone.
    assert [one["planned"] for one in said] == [[1, 0, 1, 1, 1], [0] * 5]
    assert [one["patched"] for one in said] == [0, 0]
    for one in said:  # which rank, and what it has
        assert one["said"]["code"]
        assert "tables.embeddings.t0.weight" in one["said"]["text"]
        assert "[61, 128]" in one["said"]["text"]
    again = run(tmp_path, 2, "cached", 12)  # other processes, the same folder
    assert again[0]["planned"][:2] == [0, 0]


def test_the_planners_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (said,) = run(tmp_path, 1, "compared", 40, 4)
    with capsys.disabled():
        print(f"\n40 tables, 4 ranks; TorchRec: {said['kinds']}; Headway: {said['shards']} shards")
        for name in ("headway", "torchrec"):
            seconds, memory, load, bytes_, sample = said[name]
            print(
                f"  {name:9}{seconds:7.2f} s  memory: fullest {memory:.2f} x mean, "
                f"{bytes_ / 1e6:,.0f} MB; load: busiest {load:.2f} x mean, {sample:,.0f} B a sample"
            )
    assert min(said["headway"][1:3]) >= 1.0
