"""A fake of FBGEMM's table module, which is not available on every machine.

It has the same name and the attributes that Headway uses: several tables in one memory, and a
backward pass that changes the looked-up rows without autograd.
"""

from __future__ import annotations

from enum import Enum
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn


class Where(Enum):
    DEVICE = 0
    HOST = 3
    MANAGED_CACHING = 2


class Optimizer(Enum):
    EXACT_ROWWISE_ADAGRAD = 1
    LAMB = 2


class SplitTableBatchedEmbeddingBagsCodegen(nn.Module):
    """Tables of `rows`; `features` has the table of each feature."""

    def __init__(self, rows: list[int], features: list[int], dim: int, device: str = "cpu") -> None:
        super().__init__()
        where = Where.HOST if device == "cpu" else Where.DEVICE
        self.embedding_specs = [(count, dim, where, device) for count in rows]
        self.feature_table_map = features
        self.optimizer = Optimizer.EXACT_ROWWISE_ADAGRAD
        self.dim = dim
        self.bounds = list(pairwise(accumulate(rows, initial=0)))
        self.weights = nn.Parameter(torch.randn(sum(rows) * dim, device=device))
        self.momentum = torch.zeros(sum(rows), device=device)
        self.changes = nn.Parameter(torch.zeros(0, device=device))  # makes autograd call backward

    def split_embedding_weights(self) -> list[Tensor]:
        table = self.weights.detach().view(-1, self.dim)
        return [table[begin:end] for begin, end in self.bounds]

    def split_optimizer_states(self) -> list[list[Tensor]]:
        return [[self.momentum.detach()[begin:end]] for begin, end in self.bounds]

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        batch_size_per_feature_per_rank: list[list[int]] | None = None,
    ) -> Tensor:
        features = len(self.feature_table_map)
        sizes = [(len(offsets) - 1) // features] * features
        if batch_size_per_feature_per_rank is not None:
            sizes = [sum(sizes_of_feature) for sizes_of_feature in batch_size_per_feature_per_rank]
        ends = offsets[torch.tensor(list(accumulate(sizes)), device=offsets.device)].tolist()
        rows = []
        for table, (begin, end) in zip(self.feature_table_map, pairwise([0, *ends]), strict=True):
            first, last = self.bounds[table]
            ids = indices[begin:end].long()
            rows.append(torch.where((ids >= 0) & (ids < last - first), ids, 0) + first)
        return _Lookup.apply(self.changes, self, torch.cat(rows))

    def reset_embedding_weight_momentum(self, first: int) -> None:
        self.weights.data.view(-1, self.dim)[:first] = 0
        self.momentum.data[:first] = 0


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _: Tensor, module: Any, rows: Tensor) -> Tensor:
        ctx.module, ctx.rows = module, rows
        return module.weights.detach().view(-1, module.dim)[rows]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        table = ctx.module.weights.data.view(-1, ctx.module.dim)  # without counting versions
        momentum = ctx.module.momentum.data
        momentum.index_add_(0, ctx.rows, gradient.square().mean(1))
        step = gradient / (momentum[ctx.rows].sqrt() + 1e-6)[:, None]
        table.index_add_(0, ctx.rows, step, alpha=-0.1)
        return torch.zeros_like(ctx.module.changes), None, None


class Training:
    """Several tables, one with two features, and a step that looks up a few rows."""

    def __init__(self, device: str = "cpu", *, differ: bool = False) -> None:
        torch.manual_seed(0)
        self.rows, self.features = [6000, 3000, 20], [0, 1, 1, 2]
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(self.rows, self.features, 8, device)
        self.device, self.differ = device, differ
        self.draw = torch.Generator().manual_seed(1)

    def batch(self) -> dict[str, Any]:
        sizes = [[2, 3], [4, 0], [1, 1], [8, 2]] if self.differ else [[4, 4]] * 4
        counts = [sum(counts_of_rank) for counts_of_rank in sizes]
        lengths = torch.randint(0, 4, (sum(counts),), generator=self.draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        ends = offsets[torch.tensor(list(accumulate(counts, initial=0)))].tolist()
        ids = [
            torch.randint(-1, self.rows[table], (end - begin,), generator=self.draw)
            for table, (begin, end) in zip(self.features, pairwise(ends), strict=True)
        ]
        batch_sizes = {"batch_size_per_feature_per_rank": sizes} if self.differ else {}
        return {
            "indices": torch.cat(ids).to(self.device),
            "offsets": offsets.to(self.device),
            **batch_sizes,
        }

    def forward(self) -> Tensor:
        return self.tables(**self.batch()).square().sum()

    def step(self) -> None:
        self.forward().backward()

    def state(self) -> dict[str, Tensor]:
        """The memory of the tables, as in TorchRec's state_dict."""
        weights = self.tables.split_embedding_weights()
        state = {f"t{index}": tensor for index, tensor in enumerate(weights)}
        for index, (tensor,) in enumerate(self.tables.split_optimizer_states()):
            state[f"m{index}"] = tensor
        return state

    def clone(self) -> list[Tensor]:
        return [tensor.clone().cpu() for tensor in self.state().values()]
