"""Groups by NCCL, and a step that is compiled ahead on a GPU, with one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(150),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SOURCE = Path(__file__).parents[2] / "src"

GROUPS = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
from headway.startup import process_groups as groups
everyone = groups.group([0])
assert everyone.pg() is dist.group.WORLD
own = groups.group([0], "nccl", "metrics", timeout=__import__("datetime").timedelta(seconds=60))
split = groups.split([[0]], purpose="tp")
groups.ensure(split, own)
x = torch.ones(4, device="cuda")
for group in (everyone, own, split):
    dist.all_reduce(x, group=group.pg())
assert x.tolist() == [1.0] * 4 and own.is_created
assert groups.group([0], "gloo", "cpu").pg() is not None
dist.destroy_process_group()
"""
AHEAD = """
import copy, torch
from headway import startup
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).cuda()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
net = torch.compile(model)
def step(batch):
    loss = net(batch.cuda()).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
before = copy.deepcopy(model.state_dict()), torch.cuda.get_rng_state()
ahead = startup.CompileAhead(step, modules=[model], optimizers=[optimizer])
ahead.start(startup.fast_batch(sample=torch.zeros(32, 64))).wait()
after = model.state_dict(), torch.cuda.get_rng_state()
assert all(torch.equal(before[0][key], after[0][key]) for key in before[0])
assert torch.equal(before[1], after[1]) and not optimizer.state
compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
step(torch.randn(32, 64))
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled == 1
"""


@pytest.mark.parametrize("script", [GROUPS, AHEAD], ids=["groups", "ahead"])
def test_on_one_gpu(script: str, tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(script)
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, str(path)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
