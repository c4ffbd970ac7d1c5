"""A training that saves in memory and on disk, and may be told to stop; the same on every rank.

levels.py STORE OUT [--steps N] [--memory N] [--disk N] [--wait] [--die STEP] [--filling]
levels.py STORE OUT --interval S --grace S [--memory-interval S] [--pause S] [--ready FILE]

Writes OUT.RANK with where it was restored from, where it ended, and a digest of its state then and
now, and a line with its state after each step to OUT.RANK.steps.
"""

import argparse
import hashlib
import json
import os
import signal
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from headway.checkpoint import Checkpointer
from headway.checkpoint.preemption import ignore_in_worker

warnings.filterwarnings("ignore", message="Sparse invariant checks")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ROWS = 4000

parser = argparse.ArgumentParser()
parser.add_argument("store")
parser.add_argument("out")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--memory", type=int, default=0, help="every so many steps")
parser.add_argument("--disk", type=int, default=0)
parser.add_argument("--wait", action="store_true", help="for what goes to disk")
parser.add_argument("--die", type=int, default=-1, help="the last rank, after this step's save")
parser.add_argument("--filling", action="store_true", help="before its image is whole")
parser.add_argument("--rate", type=float)
parser.add_argument("--interval", type=float)
parser.add_argument("--memory-interval", type=float)
parser.add_argument("--grace", type=float)
parser.add_argument("--pause", type=float, default=0.0, help="in each step")
parser.add_argument("--workers", type=int, default=0, help="that read the data")
parser.add_argument("--ready", help="a file with its pid, made after 15 steps and a save")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
if WORLD > 1:
    dist.init_process_group("gloo")
table = nn.EmbeddingBag(ROWS, 8, sparse=True, mode="sum")
dense = nn.Linear(8, 4)
model = nn.ModuleDict({"table": table, "dense": dense})
sparse = torch.optim.Adagrad(table.parameters(), lr=0.1)
adam = torch.optim.Adam(dense.parameters(), lr=0.01)
checkpointer = Checkpointer(
    args.store,
    {"model": model, "sparse": sparse, "adam": adam},
    interval=args.interval,
    memory_interval=args.memory_interval,
    grace_s=args.grace,
    rate=args.rate,
)
restored = checkpointer.restore()
if restored is not None:
    args.die = -1


def digest() -> str:
    """Of all that is saved."""
    told = hashlib.sha256()
    for state in (model.state_dict(), sparse.state_dict()["state"], adam.state_dict()["state"]):
        for key in sorted(state, key=str):
            for value in state[key].values() if isinstance(state[key], dict) else [state[key]]:
                told.update(value.numpy().tobytes())
    return told.hexdigest()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save(step: int) -> None:
    dies = step == args.die and RANK == WORLD - 1
    if dies and args.filling:
        checkpointer._staging.buffer_ready = lambda *_, **__: die()
    if args.interval is not None:
        if checkpointer.due(step):
            saves.append((step, checkpointer.save(step).level))
    elif args.disk and step % args.disk == 0:
        checkpointer.save(step)
        if args.wait:
            checkpointer.wait()
    elif args.memory and step % args.memory == 0:
        checkpointer.save(step, level="memory")
    if step == args.die:
        checkpointer._capture.wait()
        if dies:
            die()
        time.sleep(60)  # until somebody ends this one too


batches = iter(DataLoader(range(10_000), num_workers=args.workers, worker_init_fn=ignore_in_worker))
saves = []
step = 0 if restored is None else restored.step
begun = digest()
while step < args.steps:
    step += 1
    if args.workers:
        next(batches)
    draw = torch.Generator().manual_seed(step)
    ids = (torch.rand(16, 4, generator=draw) * ROWS).long()
    loss = dense(table(ids)).square().mean()
    for optimizer in (sparse, adam):
        optimizer.zero_grad()
    loss.backward()
    sparse.step()
    adam.step()
    time.sleep(args.pause)
    with open(f"{args.out}.{RANK}.steps", "a") as file:
        file.write(f"{step} {digest()}\n")
    save(step)
    if checkpointer.preempted:
        break
    if args.ready and step == 15:
        saves.append((step, checkpointer.save(step).level))
        checkpointer.wait()
        ready = Path(f"{args.ready}.{RANK}")
        draft = Path(f"{args.ready}.{RANK}.new")
        draft.write_text(str(os.getpid()))
        draft.rename(ready)
checkpointer.close()

content = {
    "from": None if restored is None else restored.step,
    "source": None if restored is None else restored.source,
    "step": step,
    "preempted": checkpointer.preempted,
    "saves": saves,
    "restored": begun,
    "state": digest(),
}
Path(f"{args.out}.{RANK}").write_text(json.dumps(content))
if WORLD > 1:
    dist.barrier()
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
