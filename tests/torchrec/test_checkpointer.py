"""TorchRec's fused tables change in the backward pass: what is saved is the moment of the save."""

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
    pytest.mark.timeout(120),
]

JOB = """
import os, sys, warnings

warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from headway.checkpoint import Checkpointer

ROWS, STEPS = 50_000, 4


def trained():
    config = EmbeddingBagConfig(
        name="t", embedding_dim=64, num_embeddings=ROWS, feature_names=["f"]
    )
    tables = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.1})
    return DistributedModelParallel(tables, device=torch.device("cpu"))


def checkpointer(model, store):
    parts = {"model": model, "optimizer": model.fused_optimizer}
    return Checkpointer(store, parts, writer_idle_s=0.1)


def step(model):
    ids = torch.randperm(ROWS)[: ROWS // 2]
    ones = torch.ones(len(ids), dtype=torch.int32)
    model(KeyedJaggedTensor.from_lengths_sync(["f"], ids, ones)).values().sum().backward()


def tensors(model):
    weight = model.state_dict()["embedding_bags.t.weight"]
    (kept,) = model.fused_optimizer.state_dict()["state"].values()
    found = [weight, *(kept[name] for name in sorted(kept))]
    return [one.local_shards()[0].tensor.detach().clone() for one in found]


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = trained()
for number in range(1, STEPS + 1):
    saves = checkpointer(model, f"{sys.argv[1]}/{number}")
    step(model)
    wanted = tensors(model)
    saves.save(number)
    step(model)
    saves.close()
    other = trained()
    again = checkpointer(other, f"{sys.argv[1]}/{number}")
    assert again.restore().step == number
    again.close()
    found = tensors(other)
    assert len(found) == len(wanted) >= 2
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), number
print("equal", flush=True)
os._exit(0)
"""


def test_a_save_is_its_moment_and_comes_back(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    command = [sys.executable, "-c", JOB, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.endswith("equal\n"), done.stderr[-3000:]


SAVING = Path(__file__).with_name("saving.py")


def saving(ranks: int, *words: object) -> list[Any]:
    """What the ranks have printed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={ranks}", str(SAVING), *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("ranks", "optimizer"), [(1, "rowwise"), (2, "rowwise"), (2, "adagrad"), (2, "sgd")]
)
def test_rows_that_were_looked_up(ranks: int, optimizer: str, tmp_path: Path) -> None:
    """Deltas are small and equal to the bit, and come back on any number of ranks."""
    told = saving(ranks, tmp_path, optimizer)
    assert [one["step"] for one in told] == [step for step in range(1, 7) for _ in range(ranks)]
    assert all(one["equal"] and not one["notes"] for one in told)
    kinds = [one["kind"] for one in told[::ranks]]
    assert kinds == ["full", "delta", "delta", "delta", "full", "delta"]
    sizes = [one["bytes"] for one in told[::ranks]]
    assert max(sizes[1:4]) < sizes[0] / 10
    assert sizes[5] > sizes[0] / 2  # a table was changed past its lookups
    (back, *_) = saving(3 - ranks, tmp_path, optimizer, "restore")
    assert back["step"] == 6 and back["sums"] == told[-1]["sums"]
