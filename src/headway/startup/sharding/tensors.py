"""Build sharded tensors from a plan without communication: the plan has the shards of every rank.

The metadata equals what torch gathers from all ranks, field by field. The dtype is that of the
table, because a rank without a shard has no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed._shard.sharding_spec.api import (
    EnumerableShardingSpec,
    _infer_sharding_spec_from_shards_metadata,
)
from torch.distributed._shard.sharding_spec.chunk_sharding_spec import ChunkShardingSpec
from torch.distributed.remote_device import _remote_device
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Along

from headway.errors import UsageError
from headway.startup.sharding.sharding_plan import ShardingPlan, Table, gc_paused

Device = str | Callable[[int], str]  # for every rank, or by rank of the default group
Local = Mapping[str, Sequence[torch.Tensor]]


def metadata(
    plan: ShardingPlan,
    table: str,
    *,
    group: Any = None,
    device: Device = "cpu",
    requires_grad: bool = False,
) -> ShardedTensorMetadata:
    plan.of(table)  # raises if there is none
    found_table = next(candidate for candidate in plan.tables if candidate.name == table)
    return _metadata(plan, found_table, _rank_devices(plan, group, device), requires_grad)


def sharded_tensors(
    plan: ShardingPlan,
    local: Local,
    *,
    group: Any = None,
    device: Device = "cpu",
    requires_grad: bool = False,
) -> dict[str, ShardedTensor]:
    """Make a ShardedTensor per table; `local` has this rank's tensors of each, in plan order."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise UsageError(
            f"rank {dist.get_rank()} is not in the group of the plan", code="rank-not-in-group"
        )
    devices = _rank_devices(plan, group, device)
    _check_tables(plan, local)
    tensors_by_table = {}
    create = ShardedTensor._init_from_local_shards_and_global_metadata
    specs: dict[Any, Any] = {}
    with gc_paused():
        for table in plan.tables:
            table_metadata = _metadata(plan, table, devices, requires_grad)
            tensors = _check_tensors(plan, table, rank, local.get(table.name, ()))
            own_shards = [
                shard
                for shard in table_metadata.shards_metadata
                if shard.placement is devices[rank]
            ]
            shards = [
                LocalShard(tensor, shard) for tensor, shard in zip(tensors, own_shards, strict=True)
            ]
            tensors_by_table[table.name] = create(
                shards,
                table_metadata,
                process_group=group,
                sharding_spec=_spec(plan, table, table_metadata, specs),
            )
    return tensors_by_table


def dtensors(plan: ShardingPlan, local: Local, mesh: Any) -> dict[str, DTensor]:
    """Make a DTensor per table, over a one-dimensional mesh with the plan's ranks.

    UsageError for a table that DTensor cannot express: it needs even parts on all ranks in order.
    """
    if mesh.ndim != 1 or mesh.size() != plan.world_size:
        raise UsageError(
            f"the plan needs a one-dimensional mesh of {plan.world_size} ranks, got {mesh}",
            code="plan-world-size-mismatch",
        )
    rank = mesh.get_local_rank()
    _check_tables(plan, local)
    tensors_by_table = {}
    for table in plan.tables:
        along = _even_dimension(plan, table)
        tensors = _check_tensors(plan, table, rank, local.get(table.name, ()))
        empty_sizes = (0, table.dim) if along == 0 else (table.rows, 0)
        local_tensor = (
            tensors[0]
            if tensors
            else torch.empty(empty_sizes, dtype=_dtype(table)).to(mesh.device_type)
        )
        tensors_by_table[table.name] = DTensor.from_local(
            local_tensor,
            mesh,
            [Along(along)],
            run_check=False,
            shape=torch.Size((table.rows, table.dim)),
            stride=(table.dim, 1),
        )
    return tensors_by_table


def _metadata(
    plan: ShardingPlan, table: Table, devices: Sequence[_remote_device], requires_grad: bool
) -> ShardedTensorMetadata:
    # In rank order, as if gathered.
    shards = sorted(plan.of(table.name), key=lambda shard: shard.rank)
    return ShardedTensorMetadata(
        [ShardMetadata(list(s.offsets), list(s.sizes), devices[s.rank]) for s in shards],
        torch.Size((table.rows, table.dim)),
        TensorProperties(dtype=_dtype(table), requires_grad=requires_grad),
    )


def _spec(
    plan: ShardingPlan, table: Table, table_metadata: ShardedTensorMetadata, specs: dict[Any, Any]
) -> Any:
    """The spec that torch infers, inferred once for all tables with the same layout."""
    layout = tuple(shard[1:] for shard in plan.of(table.name))
    if layout not in specs:
        infer: Any = _infer_sharding_spec_from_shards_metadata
        specs[layout] = infer(table_metadata.shards_metadata)
    if isinstance(specs[layout], ChunkShardingSpec):
        return specs[layout]
    return EnumerableShardingSpec(table_metadata.shards_metadata)


def _rank_devices(plan: ShardingPlan, group: Any, device: Device) -> list[_remote_device]:
    if plan.world_size != dist.get_world_size(group):
        raise UsageError(
            f"the plan is for {plan.world_size} ranks, but the group has "
            f"{dist.get_world_size(group)}",
            code="plan-world-size-mismatch",
        )
    where = device if callable(device) else lambda _: device
    ranks = dist.get_process_group_ranks(group)
    return [_remote_device(f"rank:{rank}/{where(rank)}") for rank in ranks]


def _check_tables(plan: ShardingPlan, local: Local) -> None:
    for name in local:
        plan.of(name)


def _check_tensors(
    plan: ShardingPlan, table: Table, rank: int, tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the tensors after checking that they match the plan for this rank."""
    shards = [shard for shard in plan.of(table.name) if shard.rank == rank]
    if len(tensors) != len(shards):
        raise UsageError(
            f"rank {rank} has {len(tensors)} tensors of table {table.name!r}; "
            f"the plan has {len(shards)}",
            code="shard-count-mismatch",
        )
    for tensor, shard in zip(tensors, shards, strict=True):
        if tuple(tensor.shape) != shard.sizes or tensor.dtype != _dtype(table):
            raise UsageError(
                f"rank {rank} has {tuple(tensor.shape)} of {_dtype_name(tensor.dtype)} for table "
                f"{table.name!r}; the plan has {shard.sizes} of {table.dtype}",
                code="shard-mismatch",
            )
    return tensors


def _even_dimension(plan: ShardingPlan, table: Table) -> int:
    """The dimension along which DTensor would shard the table exactly as the plan does."""
    shards = sorted((s for s in plan.of(table.name) if 0 not in s.sizes), key=lambda s: s.offsets)
    for along in (0, 1):
        full_size = (table.rows, table.dim)[along]
        step = -(-full_size // plan.world_size)
        even = [
            (i, i * step, min(step, full_size - i * step)) for i in range(-(-full_size // step))
        ]
        if even == [(s.rank, s.offsets[along], s.sizes[along]) for s in shards]:
            return along
    raise UsageError(
        f"table {table.name!r} cannot be a DTensor: it needs even parts on all ranks in order; "
        f"plan it with split 'row' or 'column'",
        code="table-not-even",
    )


def _dtype(table: Table) -> torch.dtype:
    dtype = getattr(torch, table.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
