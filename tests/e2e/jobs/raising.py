"""Three ways to make steps in one process; counts the steps up to each exception that comes out."""

import torch
from torch import nn

import headway

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def plain() -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@torch.compile(backend="eager")
def compiled() -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


for step in (plain, compiled, headway.step):
    made = 0
    try:
        while made < 100:
            made += 1
            step()
    except ValueError as error:
        print(f"{error} in step {made}", flush=True)
