"""Ranks that save to a store, or load from it, without a Checkpointer."""

from __future__ import annotations

import os
import traceback
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from headway.checkpoint.format import checkpoint_reader, dcp
from headway.checkpoint.format.rank_file import write_part
from headway.checkpoint.store.commit import Draft, commit
from headway.checkpoint.store.store import Store
from tests.checkpoint_items import planned_items

ROWS, COLUMNS = 101, 7


def whole(factor: float) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS) * factor


def state(factor: float) -> dict[str, Any]:
    """Sharded in every way that there is; zeros to load into with a factor of 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    start, end = rank * ROWS // world, (rank + 1) * ROWS // world
    where = ShardMetadata([start, 0], [end - start, COLUMNS], f"rank:{rank}/cpu")
    table = LocalShard(whole(factor)[start:end].clone(), where)
    return {
        "rows": distribute_tensor(whole(factor), mesh, [Shard(0)]),
        "columns": distribute_tensor(whole(factor).to(torch.bfloat16), mesh, [Shard(1)]),
        "copies": distribute_tensor(whole(factor), mesh, [Replicate()]),
        "table": init_from_local_shards([table], ROWS, COLUMNS),
        "plain": whole(factor).double(),
        "epoch": int(factor),
    }


def save(store: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    planner = DefaultSavePlanner()
    planner.set_up_planner(state(3.0), is_coordinator=rank == 0)
    plans: list[Any] = [None] * world
    dist.all_gather_object(plans, planner.create_local_plan())
    everyone, planned = planner.create_global_plan(plans)
    items = planned_items(planner.finish_plan(everyone[rank]), planner)
    with Draft(store, 100, "id", world) as draft:
        write_part(draft.folder, rank, items)
        dist.barrier()
        if rank == 0:
            commit(draft, lambda parts: dcp.build_metadata(planned, parts, "id"))
        dist.barrier()


def check(store: str) -> None:
    found = Store(store).latest_valid("full").checkpoint
    assert found is not None
    for reader in (
        FileSystemReader(found.path),
        checkpoint_reader.CheckpointReader(found.path),
        checkpoint_reader.CheckpointReader(found.path, check=True, threads=1),
        checkpoint_reader.CheckpointReader(found.path, mapped=False),
    ):
        loaded, wanted = state(0.0), state(3.0)
        load(loaded, storage_reader=reader)
        for name in ("rows", "columns", "copies"):
            assert torch.equal(loaded[name].to_local(), wanted[name].to_local()), name
        (left,), (right,) = loaded["table"].local_shards(), wanted["table"].local_shards()
        assert torch.equal(left.tensor, right.tensor)
        assert torch.equal(loaded["plain"], wanted["plain"])
        assert loaded["epoch"] == 3


def run(do: str, world: int, store: str, meet: str) -> list[int]:
    """`save` or `check`, on so many ranks, forks of this process; how each has ended."""
    torch.set_num_threads(1)
    ranks = [os.fork() or _become(do, rank, world, store, meet) for rank in range(world)]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]


def _become(do: str, rank: int, world: int, store: str, meet: str) -> NoReturn:
    code = 1
    try:
        method = f"file://{meet}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        {"save": save, "check": check}[do](store)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
