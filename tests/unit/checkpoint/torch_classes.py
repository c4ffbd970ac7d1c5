"""Classes that derive from those of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemWriter
from torch.utils.data import IterableDataset


class Noisy(nn.Module):
    """Says something else in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.drop(self.layer(x)))
        return found


class Keyed(torch.optim.Optimizer):
    """As TorchRec's: parameters have names, and each rank knows those of its own tables."""

    def __init__(self, kept: dict[str, dict[str, Any]]) -> None:
        self.params = {name: nn.Parameter(torch.zeros(1)) for name in kept}
        super().__init__(list(self.params.values()), {})
        self.kept = kept
        self.given: Any = None

    def state_dict(self) -> Any:
        return {"state": self.kept}

    def load_state_dict(self, state: Any) -> None:
        self.given = state["state"]


class Stream(IterableDataset[int]):
    """Rows without numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class Other(FileSystemWriter):
    """A writer of somebody's own."""
