"""Agreement between the ranks of a training, through the store of their process group.

No device and no collective of the training is used, so that nothing waits for a GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from headway.errors import UsageError


class RankCoordinator:
    """Exchange of small values between the ranks of a group.

    All ranks call the same methods in the same order.
    """

    def __init__(self, group: Any = None) -> None:
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._group = group
        self._store = _default_store() if self.world > 1 else None
        self._name = ""
        self._count = 0

    def set_name(self, name: str) -> None:
        """Set a key prefix that no other group of ranks uses or has used."""
        self._name = f"headway/{name}"

    def gather(self, mine: Any) -> list[Any]:
        """The value of each rank, by a collective."""
        values = [mine] * self.world
        if self.world > 1:
            dist.all_gather_object(values, mine, group=self._group)
        return values

    def from_rank0(self, mine: Any) -> Any:
        """The value of rank 0; the other ranks wait until rank 0 has called this."""
        if self.world == 1:
            return mine
        if self._store is None:
            return self.gather(mine)[0]
        key = self._key()
        if self.rank == 0:
            self._store.set(key, json.dumps(mine))
            return mine
        return self._read(key)

    def decide(self, mine: Any, choose: Callable[[Sequence[Any]], Any]) -> Any:
        """Have rank 0 decide from the values of all ranks. All ranks wait for the decision."""
        if self.world == 1 or self._store is None:
            return choose(self.gather(mine))
        key = self._key()
        if self.rank == 0:
            others = _get_all(self._store, [f"{key}/{rank}" for rank in range(1, self.world)])
            decision = choose([mine, *map(json.loads, others)])
            self._store.set(key, json.dumps(decision))
            return decision
        self._store.set(f"{key}/{self.rank}", json.dumps(mine))
        decision = self._read(key)
        self._store.delete_key(f"{key}/{self.rank}")  # rank 0 has read it, because it has answered
        return decision

    def raise_flag(self) -> None:
        """Set a flag that rank 0 reads with `flag_raised`."""
        if self._store is not None:
            self._store.set(f"{self._name}/flag", "")

    def flag_raised(self) -> bool:
        """Whether any rank has raised the flag."""
        return self._store is not None and bool(self._store.check([f"{self._name}/flag"]))

    def _key(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"

    def _read(self, key: str) -> Any:
        """Read a value; the last rank that reads it deletes it."""
        store: Any = self._store
        value = json.loads(store.get(key))
        if store.add(f"{key}/read", 1) == self.world - 1:
            store.delete_key(key)
            store.delete_key(f"{key}/read")
        return value


def _default_store() -> Any:
    """The store of the default process group, as a separate connection if torch supports that."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    store: Any = find() if find is not None else None
    return store.clone() if hasattr(store, "clone") else store


def _get_all(store: Any, keys: list[str]) -> list[bytes]:
    if store.has_extended_api():
        values: list[bytes] = store.multi_get(keys)
        return values
    return [store.get(key) for key in keys]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Rank and world size as given, or of the process group, of torchrun, or 0 and 1."""
    if (rank is None) != (world is None):
        raise UsageError("give both rank and world, or neither", code="rank-without-world")
    if rank is None or world is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if not 0 <= rank < world:
        raise UsageError(f"rank {rank} is not in a world of {world}", code="rank-out-of-range")
    return rank, world
