"""DDP on several nodes that share this folder; `bug` as an argument: rank 1 fails at step 15."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with open(f"pid-{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.replace(f"pid-{rank}.new", f"pid-{rank}")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
done = torch.load("last.pt") if os.path.exists("last.pt") else 0
for step in range(done + 1, 101):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.03)
    if step % 10 == 0:
        if rank == 0:
            torch.save(step, "new.pt")
            os.replace("new.pt", "last.pt")
        dist.barrier()
    if rank == 1 and "bug" in sys.argv and step == 15:
        raise KeyError("no such column")
dist.destroy_process_group()
