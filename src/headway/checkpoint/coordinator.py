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
    """The ranks of one group; all of them ask the same, in the same order."""

    def __init__(self, group: Any = None) -> None:
        self.rank, self.world = 0, 1
        if dist.is_initialized():
            self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._group = group
        self._store = _default_store() if self.world > 1 else None
        self._name = ""
        self._count = 0

    def set_name(self, name: str) -> None:
        """Under a name that no other group of ranks has, now or before."""
        self._name = f"headway/{name}"

    def gather(self, mine: Any) -> list[Any]:
        """What each rank has, by a collective."""
        values = [mine] * self.world
        if self.world > 1:
            dist.all_gather_object(values, mine, group=self._group)
        return values

    def from_rank0(self, mine: Any) -> Any:
        """Rank 0's; the others wait until it has come here."""
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
        """What rank 0 makes of everybody's; nobody goes on before all have come here."""
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
        self._store.delete_key(f"{key}/{self.rank}")  # rank 0 has read it, as it has answered
        return decision

    def raise_flag(self) -> None:
        """Have rank 0 see that this one wants something."""
        if self._store is not None:
            self._store.set(f"{self._name}/flag", "")

    def flag_raised(self) -> bool:
        """Whether any rank has."""
        return self._store is not None and bool(self._store.check([f"{self._name}/flag"]))

    def _key(self) -> str:
        self._count += 1
        return f"{self._name}/{self._count}"

    def _read(self, key: str) -> Any:
        """The last who reads it takes it away."""
        store: Any = self._store
        value = json.loads(store.get(key))
        if store.add(f"{key}/read", 1) == self.world - 1:
            store.delete_key(key)
            store.delete_key(f"{key}/read")
        return value


def _default_store() -> Any:
    """The one that the ranks have met in, as a connection of its own where torch can do that."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    store: Any = find() if find is not None else None
    return store.clone() if hasattr(store, "clone") else store


def _get_all(store: Any, keys: list[str]) -> list[bytes]:
    if store.has_extended_api():
        values: list[bytes] = store.multi_get(keys)
        return values
    return [store.get(key) for key in keys]


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
