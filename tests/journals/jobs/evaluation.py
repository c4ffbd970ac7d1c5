"""Evaluates after each ten of 30 steps."""

import time

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.ones(2, 4)


def evaluate() -> None:
    model.eval()
    with torch.no_grad():
        model(batch)
        time.sleep(0.2)
    model.train()


for step in range(1, 31):
    model(batch).sum().backward()
    time.sleep(0.02)
    optimizer.step()
    if step % 10 == 0:
        evaluate()
