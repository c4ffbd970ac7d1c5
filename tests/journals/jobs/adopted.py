"""Started without `headway run`."""

import headway.auto  # noqa: F401, I001

import time

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.02)
    optimizer.step()
