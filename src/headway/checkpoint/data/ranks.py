"""Which rank of how many this process is."""

from __future__ import annotations

import os

import torch.distributed as dist

from headway.errors import UsageError


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Rank and world size as given, else of the process group, of torchrun, or of one process."""
    if (rank is None) != (world is None):
        raise UsageError("rank and world are given together, or neither", code="rank-without-world")
    if rank is None or world is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank} among {world}", code="rank-out-of-range")
    return rank, world
