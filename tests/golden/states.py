"""The states that golden checkpoints hold: built alike by who records and by who reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headway.checkpoint.data import GlobalBatches, Position

ROWS, COLUMNS = 21, 6
TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
)


@dataclass(kw_only=True)
class State:
    """The arguments of a Checkpointer."""

    parts: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)

    def loaded(self) -> dict[str, Any]:
        """What the parts hold now."""
        return {name: _content(part) for name, part in {**self.parts, **self.own}.items()}


def _content(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


class Held:
    """A part with a state of its own."""

    def __init__(self, **state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Tied(nn.Module):
    """A model with a weight that two of its layers share, and with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.output = nn.Linear(4, 7)
        self.output.weight = self.embedding.weight


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, first: int = 0) -> Tensor:
    """Small whole numbers, which every type can hold."""
    count = torch.Size(shape).numel()
    return ((torch.arange(first, first + count) % 120).view(shape)).to(dtype)


def of_every_type() -> dict[str, Tensor]:
    found = {str(dtype).removeprefix("torch."): numbers((3, 5), dtype) for dtype in TYPES}
    found |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "transposed": numbers((4, 6)).t(),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    }
    return found


def full(*, filled: bool) -> State:
    """Everything that a training may have."""
    model, other = Tied(), nn.Linear(3, 2)
    for number, one in enumerate((*model.parameters(), *other.parameters())):
        one.data = numbers(tuple(one.shape), first=number if filled else 0) * float(filled)
    adam = torch.optim.Adam(model.parameters(), lr=0.5)
    momentum = torch.optim.SGD(other.parameters(), lr=0.25, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=2)
    types = {
        name: one if filled else torch.zeros_like(one) for name, one in of_every_type().items()
    }
    data = list(range(20))
    batches = GlobalBatches(data, 4, seed=7, rank=0, world=1)
    position = Position(DataLoader(data, batch_sampler=batches), name="golden", rank=0, world=1)
    if filled:
        for one in (*model.parameters(), *other.parameters()):
            one.grad = torch.ones_like(one)
        model.norm.num_batches_tracked += 5
        for part in (adam, momentum, scheduler):
            part.step()
        for number, _ in enumerate(position):
            position.trained()
            if number == 1:
                break
    plain = {"words": ["a", ("b", None)], "empty": {}, 5: "five", "bytes": b"\x00\xff"}
    parts = {
        "model": model,
        "other": other,
        "adam": adam,
        "momentum": momentum,
        "scheduler": scheduler,
        "types": Held(**types),
        "tensor": numbers((3, 4)) if filled else torch.zeros(3, 4),
        "data": position,
        "epoch": (lambda: 3) if filled else None,
        "plain": plain if filled else None,
    }
    return State(parts=parts, own={"random": Held(**({"seed": 11} if filled else {}))})


def table(*, filled: bool) -> State:
    """A table of which a step changes a few rows, and a dense layer; see `train`."""
    table, dense = nn.Embedding(120, 8, sparse=True), nn.Linear(8, 2)
    for one in (*table.parameters(), *dense.parameters()):
        one.data = numbers(tuple(one.shape)) * float(filled)
    adagrad = torch.optim.Adagrad(table.parameters(), lr=1.0)
    adam = torch.optim.Adam(dense.parameters(), lr=0.5)
    return State(parts={"table": table, "dense": dense, "adagrad": adagrad, "adam": adam})


def train(state: State, step: int) -> None:
    """A step that looks up two rows."""
    table, dense = state.parts["table"], state.parts["dense"]
    dense(table(torch.tensor([step, 50]))).sum().backward()
    for name in ("adagrad", "adam"):
        state.parts[name].step()
        state.parts[name].zero_grad()


def sharded() -> State:
    """What the ranks of `recorders/checkpoint.py` hold together, as one process has it."""
    shape = (ROWS, COLUMNS)
    parts = {
        "rows": torch.zeros(shape),
        "columns": torch.zeros(shape, dtype=torch.bfloat16),
        "copies": torch.zeros(shape),
        "table": Held(weight=torch.zeros(shape)),
        "plain": torch.zeros(shape, dtype=torch.float64),
        "epoch": None,
    }
    return State(parts=parts, own={"random": Held()})


class Batch(NamedTuple):
    """What a batch may be."""

    dense: Tensor
    ids: Tensor
    offsets: Tensor
    names: dict[str, Any]


def batches() -> list[Batch]:
    """Of two sizes."""
    return [
        Batch(
            dense=torch.zeros(count, 3, dtype=torch.bfloat16),
            ids=torch.arange(2 * count),
            offsets=torch.tensor([0, *range(2, 2 * count + 1, 2)]),
            names={"split": "train", "labels": torch.ones(count, requires_grad=True)},
        )
        for count in (4, 6)
    ]


def positions() -> dict[str, Position]:
    """Data of each kind, where it begins."""
    data = list(range(20))
    samples = GlobalBatches(data, 4, seed=3, tail="short", rank=1, world=2)
    return {
        "samples": Position(DataLoader(data, batch_sampler=samples), name="a", rank=1, world=2),
        "counted": Position(DataLoader(data, batch_size=3), rank=0, world=1),
        "stateful": Position(Stream(), rank=0, world=1),
    }


class Stream:
    """A reader with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < 6:
            self.at += 1
            yield [self.at]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]
