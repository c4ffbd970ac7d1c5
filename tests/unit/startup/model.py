"""A small model with a table, normalization and dropout."""

from __future__ import annotations

from typing import Any

import torch


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(100, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.1)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, ids: Any, starts: Any, dense: Any) -> Any:
        return self.out(self.drop(self.norm(self.bag(ids, starts))) + dense).square().mean()
