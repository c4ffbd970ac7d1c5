"""Two ranks that save with DCP, each second time behind the training; killed, and resumed."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("cpu:gloo")
rank = dist.get_rank()
aside = dist.new_group()  # its collectives come at any time
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
saved = sorted(Path("saved").glob("*/.metadata"))
step = 0
if saved:
    state = {"net": net.state_dict(), "step": 0}
    dcp.load(state, checkpoint_id=str(saved[-1].parent))
    net.load_state_dict(state["net"])
    step = state["step"]
resumed, pending = step, None
while step < 40:
    step += 1
    net(torch.ones(2, 64)).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    time.sleep(0.02)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        state = {"net": net.state_dict(), "step": step}
        if pending is not None:
            pending.result()
            pending = None
        if step % 20:
            dcp.save(state, checkpoint_id=f"saved/{step}")
        else:
            pending = dcp.async_save(state, checkpoint_id=f"saved/{step}", process_group=aside)
    if step == 35 and rank == 1 and not resumed:
        os.kill(os.getpid(), signal.SIGKILL)
if pending is not None:
    pending.result()
dist.barrier()
dist.destroy_process_group()
