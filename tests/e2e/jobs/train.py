"""Forty steps, the same whenever it is resumed; KILL, BACKEND and PLACE are in the environment."""

import os
import signal
import time

import torch
import torch.distributed as dist

ranked = "RANK" in os.environ
if ranked:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranked else 0
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
net = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
place = os.environ.get("PLACE", ".")
if os.path.exists(f"{place}/last.pt"):
    state = torch.load(f"{place}/last.pt")
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
compiled = torch.compile(net, backend=os.environ.get("BACKEND", "eager"))
for step in range(state["step"], 40):
    if step == 25 and rank == 0 and os.environ.get("KILL") and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    loss = compiled(batch).square().mean()
    loss.backward()
    for parameter in net.parameters() if ranked else ():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if rank == 0:
        os.write(1, f"loss {step} {loss.item().hex()}\n".encode())
        if step % 10 == 9:
            now = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(now, f"{place}/last.pt")
    if ranked and step % 10 == 9:
        dist.barrier()
if ranked:
    dist.destroy_process_group()
