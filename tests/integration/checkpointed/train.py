"""A training with a Checkpointer: dense layers and tables, as plain, DDP or FSDP2, on any ranks.

train.py STORE OUT [--kind plain|ddp|replicated|fsdp] [--steps N] [--every N] [--kill-after STEP]

`replicated` is DDP beside tables with sparse gradients. `--every 0`: without a Checkpointer.
`--wait`: each save is on disk. Writes
OUT.RANK with the step and source it was restored from and a digest of its final state.
"""

import argparse
import hashlib
import json
import os
import signal
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from headway.checkpoint import Checkpointer

warnings.filterwarnings("ignore", message="Sparse invariant checks")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ROWS = 500


def digest(state: object) -> str:
    """Of all tensors and values, whole, in order."""
    told = hashlib.sha256()

    def walk(value: object) -> None:
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if isinstance(value, torch.Tensor):
            told.update(value.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                told.update(str(key).encode())
                walk(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                walk(one)
        else:
            told.update(repr(value).encode())

    walk(state)
    return told.hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("store")
parser.add_argument("out")
parser.add_argument("--kind", default="plain")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--every", type=int, default=3)
parser.add_argument("--kill-after", type=int, default=-1)
parser.add_argument("--linger", type=float)
parser.add_argument("--wait", action="store_true", help="for each save, so that it is on disk")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
if WORLD > 1:
    dist.init_process_group("gloo")
tables = nn.EmbeddingBag(ROWS, 8, sparse=args.kind in ("plain", "replicated"), mode="sum")
dense = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model = nn.ModuleDict({"tables": tables, "dense": dense})
if args.kind == "fsdp":
    fully_shard(dense)
net: nn.Module = dense
if args.kind in ("ddp", "replicated"):
    net = nn.parallel.DistributedDataParallel(dense)
sparse = torch.optim.Adagrad(tables.parameters(), lr=0.1)
adam = torch.optim.Adam(dense.parameters(), lr=0.01)
position = 0

state = {"model": model, "sparse": sparse, "adam": adam, "position": lambda: position}
checkpointer = restored = None
if args.every:
    checkpointer = Checkpointer(args.store, state, writer_idle_s=args.linger)
    restored = checkpointer.restore()
first = 0
if restored is not None:
    first, position = restored.step, restored.values["position"]
if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" or restored is not None:
    args.kill_after = -1

for step in range(first + 1, args.steps + 1):
    draw = torch.Generator().manual_seed(step)
    ids = (torch.rand(32, 4, generator=draw) * ROWS).long()
    x = tables(ids)
    loss = net(x).square().mean()
    for optimizer in (sparse, adam):
        optimizer.zero_grad()
    loss.backward()
    if WORLD > 1:
        for parameter in tables.parameters():
            dist.all_reduce(parameter.grad)
    sparse.step()
    adam.step()
    position += WORLD * 32
    if checkpointer is not None and step % args.every == 0:
        checkpointer.save(step)
        if args.wait:
            checkpointer.wait()
    if step == args.kill_after:
        if checkpointer is not None and not args.wait:
            checkpointer._capture.wait()
        os.kill(os.getpid(), signal.SIGKILL)
if checkpointer is not None:
    checkpointer.close()
told = {
    "from": None if restored is None else restored.step,
    "source": None if restored is None else restored.source,
    "position": position,
    "state": digest([model.state_dict(), sparse.state_dict(), adam.state_dict()]),
}
with open(f"{args.out}.{RANK}", "w") as file:
    json.dump(told, file)
if WORLD > 1:
    dist.barrier()
    dist.destroy_process_group()
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
