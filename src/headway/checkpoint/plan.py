"""Who saves what: made once, by all ranks together, and good as long as the state looks the same.

Ranks that hold the same tensor share the work; a rank saves the shards that it alone has. It is
DCP's own plan, so that what is written is a DCP checkpoint. Later saves need no collective.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from headway.errors import HeadwayError


class StateChanged(HeadwayError):
    """The state has other tensors than the plan was made for."""


@dataclass
class Saved:
    """This rank's share of one state: tensors that are live, and values as bytes."""

    tensors: list[Tensor]
    values: list[bytes]


class Plan:
    """This rank's share, and what the whole checkpoint consists of."""

    def __init__(self, items: list[WriteItem], metadata: bytes, looks: str) -> None:
        self.tensors = [item for item in items if item.type != WriteItemType.BYTE_IO]
        self.values = [item for item in items if item.type == WriteItemType.BYTE_IO]
        self.metadata = metadata  # of the whole checkpoint, pickled
        self.looks = looks
        self.id = hashlib.sha256(looks.encode() + metadata).hexdigest()[:16]

    def share(self, state: Mapping[str, Any]) -> Saved:
        """What this rank saves of the state as it is now."""
        planner = _planner(state)
        if _looks(planner.state_dict) != self.looks:
            raise StateChanged(
                "the state has other tensors than at the first save; "
                "call replan() on all ranks before the next one"
            )
        tensors: list[Any] = [planner.resolve_data(item) for item in self.tensors]
        values = [_content(planner.resolve_data(item)) for item in self.values]
        return Saved([tensor.detach() for tensor in tensors], values)


def make(state: Mapping[str, Any], group: Any = None) -> Plan:
    """Every rank of the group calls this with its state."""
    alone = not dist.is_initialized()
    rank, world = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
    planner = _planner(state, coordinator=rank == 0)
    own = planner.create_local_plan()
    plans: list[Any] = [own] * world
    if world > 1:
        dist.all_gather_object(plans, own, group=group)
    # Every rank works out the same from the same plans: nothing has to be sent back.
    everyone, metadata = planner.create_global_plan(plans)
    mine: SavePlan = planner.finish_plan(everyone[rank])
    return Plan(list(mine.items), pickle.dumps(metadata), _looks(planner.state_dict))


def _planner(state: Mapping[str, Any], *, coordinator: bool = True) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=coordinator)
    return planner


def _looks(flat: Mapping[str, Any]) -> str:
    """Names, shapes and types."""
    return "\n".join(
        f"{key} {tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else key
        for key, value in sorted(flat.items())
    )


def _content(value: Any) -> bytes:
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
