"""Four ranks that make more process groups than they use, and talk before the first step."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
again = dist.new_group(range(world), group_desc="again")
dist.new_group([0, 1], group_desc="unused")
for table in range(3):
    dist.all_gather_object([None] * world, {"table": table, "rows": "x" * 1000})
dist.barrier()
dist.all_reduce(torch.ones(1), group=again)
net = torch.nn.Linear(4, 4)
net = torch.nn.parallel.DistributedDataParallel(net, process_group=mesh.get_group("dp"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(10):
    net(torch.ones(2, 4)).sum().backward()
    time.sleep(0.05)
    optimizer.step()
dist.destroy_process_group()
