"""Trains a model that torch.compile compiles, and checks each step against eager.

It also prints how often a function was compiled that is called with three sizes.
"""

import os

import growing
import torch
import torch.distributed as dist
from torch._inductor import cpu_vec_isa

# torch tries all that the processor has, each with three C++ programs; one is enough here.
cpu_vec_isa.supported_vec_isa_list[:] = [cpu_vec_isa.VecAVX2()]
ranked = "RANK" in os.environ
if ranked:
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 1, bias=False))
compiled = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = torch.linspace(-1, 1, 32).reshape(4, 8)
for _ in range(3):
    loss = compiled(batch).square().mean()
    torch.testing.assert_close(loss, net(batch).square().mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    os.write(1, f"loss {loss.item().hex()}\n".encode())  # at once: other ranks write too
os.write(1, f"graphs {growing.compiled()}\n".encode())
if ranked:
    dist.destroy_process_group()
