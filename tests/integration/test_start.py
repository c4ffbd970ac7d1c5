"""Stages and compiling ahead, in real ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ForkServer, free_port, probe_env

pytestmark = pytest.mark.timeout(110)

# Two ranks in forks of one process; the one that goes on is a rank.
RANKS = r"""
import os, sys
pids = []
for rank in ("0", "1"):
    pids.append(os.fork())
    if pids[-1] == 0:
        os.environ["RANK"] = rank
        break
else:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
"""
STAGES = r"""
import os, sys, time
import torch
import torch.distributed as dist
from headway import startup

rank = int(os.environ["RANK"])
stages = startup.Stages(seed=3)

@stages.stage(where="main")
def process_group_init():
    dist.init_process_group("gloo")
    return dist.get_world_size()

def first(process_group_init):
    return torch.rand(2)

def second(process_group_init):
    return torch.rand(2)

order = [first, second]
if "mixed" in sys.argv and rank == 1:
    order.reverse()
for one in order:
    stages.add(one, where="main")

@stages.stage(where="process")
def table():
    return torch.arange(12.0).reshape(3, 4)

@stages.stage()
def preproc_creation(table):
    time.sleep(0.05 * rank)
    return table.sum().item()

try:
    results = stages.run(overlap="serial" not in sys.argv)
except startup.stages.StageError as error:
    os.write(1, f"CODE {rank} {error.code}\n".encode())
    os._exit(1)
found = results.first.tolist() + results.second.tolist() + [results.preproc_creation]
dist.barrier()  # one that is gone first would end the other's connecting
os.write(1, f"RESULT {rank} {found}\n".encode())  # in one piece
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
"""

AHEAD = r"""
import os
import torch
import torch.distributed as dist
from headway import startup

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
nn = torch.nn
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
net = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
compiled = torch.compile(net, backend="aot_eager")

def step(x):
    loss = compiled(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

real = torch.randn(12, 8, generator=torch.Generator().manual_seed(rank))
if rank == 0:  # alone: nobody else is there to meet it
    ahead = startup.CompileAhead(step, modules=[net], optimizers=[optimizer])
    ahead.start(startup.fast_batch(sample=torch.zeros(12, 8))).wait()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
losses = [step(real) for _ in range(3)]
if rank == 0:
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "recompiled"
weights = [torch.zeros_like(model[0].weight) for _ in range(2)]
dist.all_gather(weights, model[0].weight.detach())
assert torch.equal(*weights)
dist.barrier()
os.write(1, f"RESULT {rank} {losses}\n".encode())  # in one piece
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
"""

TOGETHER = r"""
import os, sys
import torch
import torch.distributed as dist
from headway import startup
from headway.startup.compile_ahead import AheadFailed

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
nn = torch.nn

def local(value):
    return value.to_local() if hasattr(value, "to_local") else value

def held(model, optimizer):
    found = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    for state in optimizer.state.values():
        found += [value for _, value in sorted(state.items())]
    return [None if one is None else local(one).detach().clone() for one in found]

def same(one, other):
    return one is other is None or torch.equal(one, other)

def shards(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh, reshard_after_forward=block is model[0])
    return fully_shard(model, mesh=mesh)

def replicas(model):
    net = nn.parallel.DistributedDataParallel(model)
    net.compile(backend="aot_eager")
    return net

def train(with_ahead):
    torch._dynamo.reset()
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
    model = nn.Sequential(block(), block())
    net = {"fsdp": shards, "ddp": replicas}[sys.argv[1]](model)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    real = torch.randn(12, 8, generator=torch.Generator().manual_seed(rank))

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    def broken(x):
        net(x)
        raise ValueError("no such column")

    def compile_ahead(step, batch):
        before, drawn = held(net, optimizer), torch.get_rng_state()
        ahead = startup.CompileAhead(step, modules=[net], optimizers=[optimizer], collective=True)
        try:
            return ahead.start(batch).wait()
        finally:
            after = held(net, optimizer)
            assert len(before) == len(after) and all(map(same, before, after)), "not put back"
            assert torch.equal(torch.get_rng_state(), drawn)

    sample = startup.fast_batch(sample=torch.zeros(12, 8))
    graphs = torch._dynamo.utils.counters["stats"]
    losses, count = [], None
    for number in range(4):
        if with_ahead and number in (0, 2):  # without and with gradients and optimizer state
            assert compile_ahead(step, None if rank else sample).seconds == 0, "one rank alone"
            assert compile_ahead(step, sample).seconds > 0
            count = count or graphs["unique_graphs"]
            try:
                compile_ahead(broken, sample)
                raise AssertionError("did not fail")
            except AheadFailed:
                pass
        losses.append(step(real))
    assert count in (None, graphs["unique_graphs"]), "recompiled"
    return losses, [one.tolist() for one in held(net, optimizer)]

plain = train(False)
assert train(True) == plain, "trained otherwise"
dist.barrier()
os.write(1, f"RESULT {rank} {plain[0]}\n".encode())  # in one piece
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
"""


Ranks = Callable[..., dict[int, Any]]


@pytest.fixture
def ranks(fork_server: ForkServer, tmp_path: Path) -> Ranks:
    """The printed result of each of two ranks, or the code of its error."""

    def run(script: str, *words: str, code: int = 0) -> dict[int, Any]:
        (tmp_path / "script.py").write_text(RANKS + script)
        (tmp_path / "journal").mkdir(exist_ok=True)
        env = probe_env(
            tmp_path / "journal",
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
        )
        status, stderr = fork_server.run(tmp_path / "script.py", *words, env=env)
        assert status == code, stderr
        results: dict[int, Any] = {}
        for line in (tmp_path / "stdout").read_text().splitlines():
            kind, _, rest = line.partition(" ")
            rank, _, output = rest.partition(" ")
            if kind in ("RESULT", "CODE"):
                results[int(rank)] = json.loads(output) if kind == "RESULT" else output
        return results

    return run


def test_side_by_side_computes_what_one_by_one_does(ranks: Ranks) -> None:
    together = ranks(STAGES)
    assert together[0] == together[1] and together[0][-1] == 66.0
    assert ranks(STAGES, "serial") == together


def test_ranks_with_another_order_are_told_so(ranks: Ranks) -> None:
    assert ranks(STAGES, "mixed", code=1)[1] == "stages-differ-between-ranks"


@pytest.mark.slow
def test_a_rank_compiles_ahead_without_the_others(ranks: Ranks) -> None:
    assert set(ranks(AHEAD)) == {0, 1}


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_all_ranks_compile_ahead_together(ranks: Ranks, kind: str) -> None:
    assert set(ranks(TOGETHER, kind)) == {0, 1}
