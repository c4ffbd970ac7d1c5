"""mp.spawn: ranks have no RANK in their environment and the parent trains nothing."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from truth import Truth


def work(rank: int, world: int) -> None:
    truth = Truth(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    with truth.timed("slow_group"):
        if rank == 1:
            time.sleep(0.8)  # rank 0 waits for it inside init_process_group
    dist.init_process_group("gloo", rank=rank, world_size=world)
    net = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    truth.mark("started")
    for step in range(30):
        net(torch.ones(4, 8)).sum().backward()
        time.sleep(0.04)
        optimizer.step()
        truth.mark("last_step")
        if step == 15 and rank == 1:
            with truth.timed("waste.checkpoint_block"):
                torch.save({"slow": Slow()}, "checkpoint.pt")
    dist.destroy_process_group()


class Slow:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.7)
        return (int, ())


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
