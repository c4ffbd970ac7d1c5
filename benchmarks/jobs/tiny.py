"""A tiny model under DDP, with a checkpoint every ten steps: a restart of it is all overhead."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
net = DistributedDataParallel(model)
optimizer = torch.optim.Adam(net.parameters())
step = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
while True:
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    time.sleep(0.005)
    if step % 10 == 0:
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"step": step, **state}, "new.pt")
            os.replace("new.pt", "last.pt")
        dist.barrier()
