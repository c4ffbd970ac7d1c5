"""Compiles its step on a fast batch while it starts: ahead.py FAST ROWS...

Each batch has so many rows. MARKED in the environment: their number is marked as dynamic.
"""

import os
import sys

import torch

from headway import startup

torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids):
        return self.out(self.table(ids)).square().mean()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="aot_eager")


def step(ids):
    compiled(ids).backward()
    optimizer.step()
    optimizer.zero_grad()


fast, *real = map(int, sys.argv[1:])
stages = startup.Stages()
stages.add(lambda: torch.zeros(fast, dtype=torch.int64), "preproc_creation")


@stages.stage()
def ahead(preproc_creation):
    ready = startup.CompileAhead(step, modules=[model], optimizers=[optimizer])
    batch = startup.fast_batch(sample=preproc_creation)
    if "MARKED" in os.environ:
        torch._dynamo.mark_dynamic(batch, 0)
    ready.start(batch).wait()


stages.run()
for rows in real:
    step(torch.zeros(rows, dtype=torch.int64))
