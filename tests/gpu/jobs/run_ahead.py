"""A loop that runs ahead of its GPU, and what CUDA events say of it.

run_ahead.py WAIT_MS STEPS TRUTH.json      batches come every WAIT_MS, then one small torch.save
"""

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

wait, steps, where = float(sys.argv[1]) / 1e3, int(sys.argv[2]), sys.argv[3]


class Source(IterableDataset):
    def __iter__(self):
        for _ in range(steps):
            time.sleep(wait)
            yield 0


model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(3):  # kernels are loaded here, not in the first step
    model(x).sum().backward()
model.zero_grad()
torch.cuda.synchronize()
edges = []
batches = iter(DataLoader(Source(), batch_size=None))
started = None
for _ in batches:
    if started is None:
        started = time.monotonic()
        zero = torch.cuda.Event(enable_timing=True)
        zero.record()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    model(x).sum().backward()
    optimizer.step()
    after.record()
    edges.append((before, after))
loop_end = time.monotonic()
torch.save(torch.zeros(4, device="cuda"), where + ".pt")
save_end = time.monotonic()
torch.cuda.synchronize()
busy = sum(before.elapsed_time(after) for before, after in edges) / 1e3
span = zero.elapsed_time(edges[-1][1]) / 1e3
with open(where, "w") as file:
    json.dump(
        {
            "device_span": span,
            "device_busy": busy,
            "stall": span - busy,
            "host_loop": loop_end - started,
            "host_save": save_end - loop_end,
            "save": save_end - started - span,
        },
        file,
    )
