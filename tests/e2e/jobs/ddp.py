"""DDP under torchrun: rank 1 kills itself once, in the middle, after the second checkpoint."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from truth import Truth

rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
truth = Truth(rank, attempt)
truth.mark("imported")
STEPS, EVERY, KILL_AT = 60, 10, 35

dist.init_process_group("gloo")
with truth.timed("train_module_creation"):
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    net = DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
step = 0
path = Path("checkpoint.pt")
if path.exists():
    with truth.timed("checkpoint_load"):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        step = state["step"]
truth.mark(f"resumed_{step}")
truth.mark("started")
while step < STEPS:
    net(torch.ones(4, 8)).sum().backward()
    time.sleep(0.05)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    truth.mark("last_step")
    truth.mark(f"step_{step}")
    if rank == 0 and step % EVERY == 0:
        with truth.timed("checkpoint_block"):
            torch.save({"model": model.state_dict(), "step": step}, "partial.pt")
            os.replace("partial.pt", path)
            time.sleep(0.0)
    if attempt == 0 and rank == 1 and step == KILL_AT:
        truth.mark("killed")
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
truth.mark("done")
