"""A training whose table is cut by rows: each rank looks up in its own, and saves it as a shard.

sharded.py STORE OUT [--kind dtensor|sharded_tensor|plain] [--steps N] [--hot RANK]

Its optimizer has the rank's plain tensor, as a sparse gradient needs; the state has a DTensor or a
ShardedTensor in its place. `plain` is one process with all rows in one tensor. Every step is saved
and waited for. `--hot`: a rank that looks up all of its rows in each step after the first. Writes
OUT.RANK with the step that it was restored from and digests of what all ranks have together.
"""

import argparse
import hashlib
import json
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from headway.checkpoint import Checkpointer

warnings.filterwarnings("ignore")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ROWS, DIM, BATCH = 301, 4, 16
EACH = -(-ROWS // WORLD)
FIRST = min(RANK * EACH, ROWS)
COUNT = min(EACH, ROWS - FIRST)

parser = argparse.ArgumentParser()
parser.add_argument("store")
parser.add_argument("out")
parser.add_argument("--kind", default="dtensor")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--hot", type=int, default=-1)
args = parser.parse_args()

torch.set_num_threads(1)
mesh: Any = None
if args.kind != "plain":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (WORLD,))
torch.manual_seed(RANK)
table = nn.EmbeddingBag(COUNT, DIM, sparse=True, mode="sum")
optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)


def spread(local: Tensor) -> Any:
    """A rank's rows as its shard of the table."""
    shape = torch.Size((ROWS, *local.shape[1:]))
    if args.kind == "dtensor":
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, mesh, [Shard(0)], shape=shape, stride=stride)
    offsets = [FIRST, *[0] * (local.dim() - 1)]
    told = ShardMetadata(offsets, list(local.shape), f"rank:{RANK}/cpu")
    return ShardedTensor._init_from_local_shards([LocalShard(local, told)], *shape)


def own(value: Any) -> Tensor:
    """A rank's rows of it."""
    local: Tensor = value.to_local() if isinstance(value, DTensor) else value.local_tensor()
    return local


def model_state(_: Any, state: dict[str, Any], *__: Any) -> None:
    state["weight"] = spread(state["weight"])


def optimizer_state(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    kept = {**state["state"][0], "sum": spread(state["state"][0]["sum"])}
    return {**state, "state": {0: kept}}


def optimizer_loads(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    kept = {**state["state"][0], "sum": own(state["state"][0]["sum"])}
    return {**state, "state": {0: kept}}


if args.kind != "plain":
    table.register_state_dict_post_hook(model_state)
    optimizer.register_state_dict_post_hook(optimizer_state)
    optimizer.register_load_state_dict_pre_hook(optimizer_loads)

checkpointer = Checkpointer(args.store, {"model": table, "optimizer": optimizer})
restored = checkpointer.restore()
for step in range((restored.step if restored else 0) + 1, args.steps + 1):
    draw = torch.Generator().manual_seed(1000 * RANK + step)
    ids = torch.randint(COUNT, (BATCH,), generator=draw)
    if args.hot == RANK and step > 1:
        ids = torch.arange(COUNT)
    optimizer.zero_grad()
    table(ids.view(1, -1)).square().sum().backward()
    optimizer.step()
    checkpointer.save(step)
    checkpointer.wait()
checkpointer.close()


def digest(local: Tensor) -> str:
    """Of the table as all ranks have it together."""
    parts: list[Any] = [local] * WORLD
    if WORLD > 1:
        dist.all_gather_object(parts, local)
    return hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest()


told = {
    "from": None if restored is None else restored.step,
    "table": digest(table.weight.detach()),
    "sums": digest(optimizer.state[table.weight]["sum"]),
}
with open(f"{args.out}.{RANK}", "w") as file:
    json.dump(told, file)
if args.kind != "plain":
    dist.barrier()
    dist.destroy_process_group()
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
