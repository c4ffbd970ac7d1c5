"""A compiled model configured by the environment; prints eager's results and its own."""

import copy
import functools
import json
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CASE = os.environ.get("CASE", "")
SMALL = CASE == "small"  # with a third of the C++ code


def ten(x: Tensor) -> Tensor:
    return x * 10


def hundred(x: Tensor) -> Tensor:
    return x * 100


def times(factor: float):
    def inner(x: Tensor) -> Tensor:
        return x * factor

    return inner


def powered(x: Tensor, exponent: int = 3 if CASE == "default" else 2) -> Tensor:
    return x**exponent


def scaled(x: Tensor, by: float) -> Tensor:
    return x * by


mine = hundred if CASE == "global function" else ten
FACTOR = 3.0 if CASE == "global number" else 2.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.Identity() if SMALL else nn.BatchNorm1d(4)
        self.act = F.gelu if CASE == "attribute" else F.relu
        self.own = hundred if CASE == "own function" else ten
        self.close = times(7.0 if CASE == "closure" else 5.0)
        self.part = functools.partial(scaled, by=9.0 if CASE == "partial" else 4.0)
        deep = nn.Sequential(nn.Linear(4, 4), nn.GELU() if CASE == "submodule" else nn.ReLU())
        self.deep = nn.Identity() if SMALL else deep
        self.drop = nn.Dropout(0.5) if CASE == "random" else nn.Identity()
        self.sign = -1 if CASE == "number" else 1
        self.flag = CASE != "flag"

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.linear(x))
        y = mine(self.own(y)) + self.close(y) + self.part(y) + powered(y)
        y = self.drop(self.deep(self.norm(y))) * FACTOR * self.sign
        if self.flag:
            y = y + 1
        return y.square().mean()


def train(model: nn.Module, step_of: nn.Module, sizes: list[int]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for step, size in enumerate(sizes):
        torch.manual_seed(step)
        if CASE == "in mid run" and step == 2:
            model.act = F.gelu
        if CASE == "eval in mid run" and step == 2:
            model.eval()
        loss = step_of(torch.randn(size, 4))
        loss.backward()
        optimizer.step()
        if CASE != "gradients":
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
model = Model()
twin = copy.deepcopy(model)
sizes = [8, 8, 8, 16] if CASE == "sizes" else [8, 8, 8, 8]
if CASE == "gradients":  # are there before the first compile
    for one in (model, twin):
        for parameter in one.parameters():
            parameter.grad = torch.ones_like(parameter)
expected = train(twin, twin, sizes)
compiled = torch.compile(model)
got = train(model, compiled, sizes)
same = all(torch.allclose(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))
counters = torch._dynamo.utils.counters
print(
    json.dumps(
        {
            "expected": expected,
            "got": got,
            "buffers": same,
            "hits": counters["dynamo_cache"]["dynamo_cache_hit"],
            "graphs": counters["stats"]["unique_graphs"],
        }
    )
)
