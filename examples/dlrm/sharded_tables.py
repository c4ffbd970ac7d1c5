"""Embedding tables of which each rank holds some: ids go to their tables, vectors come back."""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from train import TABLES, table

from headway.startup import sharding

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def plan(args: argparse.Namespace) -> sharding.ShardingPlan:
    """Which rank holds which tables: made by rank 0, sent once, the same everywhere."""
    adam = 8  # bytes that it keeps for an element
    tables = [
        sharding.Table(str(number), args.rows, args.dim, state=adam, split="table")
        for number in range(TABLES)
    ]
    if WORLD == 1:
        return sharding.plan(tables, WORLD)
    return sharding.share(lambda: sharding.plan(tables, WORLD), tables)


class ShardedTables(nn.ModuleDict):
    """This rank's tables by their number; looks up in those of all ranks. Each must hold one."""

    def __init__(self, plan: sharding.ShardingPlan, args: argparse.Namespace) -> None:
        self.held = [[int(shard.table) for shard in plan.on(rank)] for rank in range(WORLD)]
        super().__init__({str(number): table(number, args) for number in self.held[RANK]})
        arriving = [number for held in self.held for number in held]
        self.in_order = [arriving.index(number) for number in range(TABLES)]

    def forward(self, ids: Tensor) -> Tensor:
        """One vector of each table for each sample, from ids of the same shape on every rank."""
        batch = len(ids)
        ours = [batch * len(held) for held in self.held]  # what we ask of each rank
        theirs = [batch * len(self)] * WORLD  # what each rank asks of us
        asked = _exchange(torch.cat([ids[:, held].flatten() for held in self.held]), ours, theirs)
        columns = asked.view(-1, len(self)).unbind(dim=1)
        # Each rank's ids for themselves: their gradients are then added up as DDP does, to the bit.
        found = [
            torch.cat([table(asked) for asked in column.split(batch)])
            for table, column in zip(self.values(), columns, strict=True)
        ]
        vectors = _Exchange.apply(torch.stack(found, dim=1).flatten(0, 1), theirs, ours)
        parts = [part.view(batch, -1, part.shape[1]) for part in vectors.split(ours)]
        return torch.cat(parts, dim=1)[:, self.in_order]


class _Exchange(torch.autograd.Function):
    """Vectors go to who asked for them; their gradients come back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sizes = sent, received
        return _exchange(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.sizes
        # A table gets the gradients of all ranks; DDP takes their mean, so this does.
        return _exchange(grad.contiguous(), received, sent) / WORLD, None, None


def _exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    if WORLD == 1:
        return rows
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows, received, sent)
    return arrived
