"""A small model with tables, as a user's module has it: a factory, and golden inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dlrm(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode=mode) for mode in ("sum", "mean")
        )
        self.names = nn.Embedding(rows, width)
        self.bottom = nn.Sequential(nn.Linear(4, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(4 * width, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("turns", torch.linspace(0, 1, width), persistent=False)

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> dict[str, Tensor]:
        embeddings = [table(ids) for table, ids in zip(self.tables, sparse, strict=True)]
        embeddings += [self.names(sparse[0][:, 0]) * self.turns, self.bottom(dense)]
        logit = self.top(torch.cat(embeddings, 1)) * self.scale
        return {"logit": logit, "probability": logit.sigmoid()}


def build(rows: int = 50, width: int = 8) -> Dlrm:
    return Dlrm(rows, width)


def trained(seed: int = 1, **arguments: int) -> Dlrm:
    """The same with weights that no new one has."""
    torch.manual_seed(seed)
    model = build(**arguments)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def golden() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(7)
    ids = [torch.randint(0, 50, (6, 3), generator=generator) for _ in range(2)]
    return torch.randn(6, 4, generator=generator), ids


def no_module() -> int:
    return 1


def too_few() -> Tensor:
    return golden()[0]
