"""The save plan: which rank saves which tensor.

All ranks make it together, as a DCP plan, and use it as long as the state has the same tensors;
later saves need no collective. Replicated tensors are divided among the ranks, a shard is saved by
the rank that holds it. What may differ slightly between ranks, such as the statistics of a batch
norm, is saved by the first of them: DDP continues with those of rank 0.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from headway.checkpoint.state import flatten, unsupported_reason
from headway.errors import HeadwayError, UsageError


class StateChanged(HeadwayError):
    """The state has other tensors than those the plan was made for."""

    code = "state-changed"


@dataclass
class LocalItems:
    """This rank's share of one state: live tensors, and values as bytes."""

    tensors: list[Tensor]
    values: list[bytes]


class RankSavePlan:
    """This rank's share, and what the whole checkpoint consists of."""

    def __init__(self, items: list[WriteItem], metadata: bytes, signature: str) -> None:
        self.tensors = [item for item in items if item.type != WriteItemType.BYTE_IO]
        self.values = [item for item in items if item.type == WriteItemType.BYTE_IO]
        self.metadata = metadata  # of the whole checkpoint, pickled
        self.signature = signature
        self.id = hashlib.sha256(signature.encode() + metadata).hexdigest()[:16]

    def local_items(self, state: Mapping[str, Any]) -> LocalItems:
        """What this rank saves of the current state."""
        planner = _planner(state)
        if _signature(planner.state_dict) != self.signature:
            raise StateChanged(
                "the tensors of the state differ from those of the first save; "
                "call replan() on all ranks before the next one"
            )
        tensors: list[Any] = [planner.resolve_data(item) for item in self.tensors]
        values = [_value_bytes(planner.resolve_data(item)) for item in self.values]
        return LocalItems([tensor.detach() for tensor in tensors], values)


def make_plan(
    state: Mapping[str, Any], group: Any = None, first_rank_names: Container[str] = ()
) -> RankSavePlan:
    """Make the plan. Every rank of the group calls this with its state.

    `first_rank_names` are the flat names of tensors that are saved by the first rank that has them.
    """
    alone = not dist.is_initialized()
    rank, world = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
    result: tuple[SavePlan, set[str]] | UsageError
    try:
        planner = _planner(state, coordinator=rank == 0)
        plan = planner.create_local_plan()
        result = (
            plan,
            {item.index.fqn for item in plan.items if _is_saved_by_first(item, first_rank_names)},
        )
    except UsageError as error:  # the other ranks would wait for this one
        result = error
    everyone: list[Any] = [result] * world
    if world > 1:
        dist.all_gather_object(everyone, result, group=group)
    for answer in everyone:
        if isinstance(answer, UsageError):
            raise answer
    _check_replicas([plan for plan, _ in everyone])
    plans = _drop_replicas(everyone)
    # Every rank computes the same result from the same plans; nothing has to be sent back.
    shares, metadata = planner.create_global_plan(plans)
    mine: SavePlan = planner.finish_plan(shares[rank])
    return RankSavePlan(list(mine.items), pickle.dumps(metadata), _signature(planner.state_dict))


def _is_saved_by_first(item: WriteItem, first_rank_names: Container[str]) -> bool:
    return item.type == WriteItemType.BYTE_IO or item.index.fqn in first_rank_names


def _drop_replicas(everyone: Sequence[tuple[SavePlan, set[str]]]) -> list[SavePlan]:
    """Drop what an earlier rank saves as well, for the names that any rank has listed."""
    names = set().union(*(shared for _, shared in everyone))
    taken: set[Any] = set()
    plans = []
    for plan, _ in everyone:
        items = [item for item in plan.items if item.index not in taken]
        taken |= {item.index for item in plan.items if item.index.fqn in names}
        plans.append(replace(plan, items=items))
    return plans


def _check_replicas(plans: Sequence[SavePlan]) -> None:
    """Check that a tensor has the same shape and type on all ranks that have it."""
    known: dict[str, tuple[int, Any]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data, name = item.tensor_data, item.index.fqn
            form = None if data is None else (data.size, data.properties.dtype)
            first, expected = known.setdefault(name, (rank, form))
            if form != expected:
                raise UsageError(
                    f"{name} has another shape or type on rank {rank} than on rank {first}; "
                    "pass state that is private to each rank as `per_rank`",
                    code="ranks-disagree",
                    name=name,
                    ranks=[first, rank],
                )


def _planner(state: Mapping[str, Any], *, coordinator: bool = True) -> DefaultSavePlanner:
    """The planner of a state. UsageError if flat names collide or a tensor is not supported."""
    planner = DefaultSavePlanner()
    try:
        planner.set_up_planner(dict(state), is_coordinator=coordinator)
    except ValueError:
        flatten(state)
        raise
    for name, value in planner.state_dict.items():
        if why := unsupported_reason(value):
            raise UsageError(
                f"{name} cannot be saved as a tensor: {why}",
                code="tensor-not-supported",
                name=name,
            )
    return planner


def _signature(flat: Mapping[str, Any]) -> str:
    """Names, shapes and types."""
    return "\n".join(
        f"{key!r} {tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(key)
        for key, value in sorted(flat.items())
    )


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
