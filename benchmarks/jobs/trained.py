"""What is trained while checkpoints of it are saved: a state of a given size, and a step."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

DIM, BATCH, BAG, TABLES, WIDE = 64, 256, 4, 8, 2048
PRODUCT = 4096  # rows and columns of the matrices that fill a step up


class Training:
    """A DLRM's state: tables with sparse gradients under Adagrad, dense layers under Adam.

    With `dense` all bytes are in the layers, and a batch is small, as on a CPU a step would take
    seconds else. With `step_s` a GPU multiplies matrices until a step takes that long.
    """

    def __init__(self, megabytes: int, device: str, *, dense: bool, step_s: float = 0.0) -> None:
        torch.manual_seed(0)
        self.device = device
        self.batch = 8 if dense and device == "cpu" else BATCH
        # A row has DIM weights and as many sums of Adagrad; Adam has two of each weight.
        size = megabytes * 1_000_000
        self.rows = 1000 if dense else max(1000, size // (TABLES * 2 * DIM * 4))
        layers = max(1, size // (TABLES * DIM * WIDE * 12)) if dense else 2
        weights = [self._weight(self.rows) for _ in range(TABLES)]
        bags = [
            nn.EmbeddingBag(self.rows, DIM, sparse=True, mode="sum", _weight=weight)
            for weight in weights
        ]
        self.tables = nn.ModuleList(bags)
        self.top = nn.ModuleList(
            nn.Linear(TABLES * DIM, WIDE, device=device) for _ in range(layers)
        )
        self.model = nn.ModuleDict({"tables": self.tables, "top": self.top})
        self.sparse = torch.optim.Adagrad(self.tables.parameters(), lr=0.01)
        self.adam = torch.optim.Adam(self.top.parameters(), fused=device == "cuda")
        self.draw = torch.Generator().manual_seed(1)
        self.guard: Callable[[], AbstractContextManager[Any]] = nullcontext  # around an update
        self.products = 0
        if step_s and device == "cuda":
            self._fill_up(step_s)

    def step(self) -> float:
        """Seconds."""
        begun = time.monotonic()
        ids = (torch.rand(TABLES, self.batch, BAG, generator=self.draw) ** 4 * self.rows).long()
        ids = ids.to(self.device)
        x = torch.cat([bag(one) for bag, one in zip(self.tables, ids, strict=True)], dim=1)
        loss = torch.stack([layer(x).square().mean() for layer in self.top]).mean()
        for _ in range(self.products):
            torch.mm(self.matrix, self.matrix, out=self.product)
        for optimizer in (self.sparse, self.adam):
            optimizer.zero_grad()
        loss.backward()
        with self.guard():
            self.sparse.step()
            self.adam.step()
        loss.item()
        return time.monotonic() - begun

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "sparse": self.sparse, "adam": self.adam}

    def state(self) -> dict[str, dict]:
        return {name: part.state_dict() for name, part in self.parts().items()}

    def load(self, state: dict[str, dict]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def tensors(self) -> list[Tensor]:
        found = []
        for part in (self.model.state_dict(), self.sparse.state, self.adam.state):
            for value in part.values():
                found += value.values() if isinstance(value, dict) else [value]
        return [value.detach() for value in found if isinstance(value, Tensor)]

    def sums(self) -> list[int]:
        """Of the bits of every tensor: equal where the tensors are."""
        flat = [tensor.flatten() for tensor in self.tensors()]
        bits = [one.view(torch.int32 if one.numel() % 2 else torch.int64) for one in flat]
        return [int(one.sum()) for one in bits]

    def _weight(self, rows: int) -> Tensor:
        """Noise, the same again and again: a quick start for any size."""
        noise = torch.randn(1024, DIM, device=self.device) / 8
        weight = torch.empty(rows, DIM, device=self.device)
        for piece in weight.split(len(noise)):
            piece.copy_(noise[: len(piece)])
        return weight

    def _fill_up(self, step_s: float) -> None:
        # Of float32: in bfloat16 the GPU gets so hot that its clock, and each step, varies.
        self.matrix = torch.randn(PRODUCT, PRODUCT, device="cuda") / PRODUCT
        self.product = torch.empty_like(self.matrix)
        self._mean(1)  # what first ones wait for
        bare = self._mean(0)
        each = (self._mean(20) - bare) / 20
        self.products = max(0, round((step_s - bare) / each))

    def _mean(self, products: int) -> float:
        self.products = products
        return sum(self.step() for _ in range(5)) / 5
