"""Ranks of a group, forked from one process: `fork(CHECKS, WORLD, FOLDER)`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from headway.errors import HeadwayError
from headway.startup import sharding
from headway.startup.sharding import PlanCache, Shard, ShardingPlan, Table

COLLECTIVES = ("all_gather_object", "all_gather", "broadcast", "all_reduce", "gather", "barrier")


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the calls of each collective."""
    calls: dict[str, int] = {}
    real = {name: getattr(dist, name) for name in COLLECTIVES}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return real[name](*args, **kwargs)

        return call

    for module in (dist, dist.distributed_c10d):
        for name in COLLECTIVES:
            setattr(module, name, counting(name))
    try:
        yield calls
    finally:
        for module in (dist, dist.distributed_c10d):
            for name in COLLECTIVES:
                setattr(module, name, real[name])


def odd(world: int) -> ShardingPlan:
    """Uneven rows, more ranks than rows, parts of no size, ranks without a part, mixed dtypes."""
    tables, shards = [], []

    def add(name: str, rows: int, dim: int, dtype: str, parts: list[tuple[int, ...]]) -> None:
        tables.append(Table(name, rows, dim, dtype))
        for rank, *at in parts:
            shards.append(Shard(name, (at[0], at[1]), (at[2], at[3]), rank))

    def by_rows(rows: int, dim: int) -> list[tuple[int, ...]]:
        step = -(-rows // world)
        starts = [min(rows, rank * step) for rank in range(world)]
        return [(r, at, 0, min(step, rows - at), dim) for r, at in enumerate(starts)]

    last = world - 1
    add("even", 8 * world, 4, "float32", by_rows(8 * world, 4))
    add("uneven", 8 * world + 3, 4, "float16", by_rows(8 * world + 3, 4))
    few = max(1, world - 1)  # the last rank has none of them
    add("few", few, 4, "bfloat16", by_rows(few, 4))
    add("one", 1, 8, "float64", by_rows(1, 8))
    add("whole", 5, 4, "bfloat16", [(last, 0, 0, 5, 4)])
    # Against the order of the ranks, and uneven: torch infers no even spec that would hide it.
    add("columns", 6, 8, "int8", [(last, 0, 0, 6, 5), (0, 0, 5, 6, 3)])
    add("both", 9, 4, "float16", [(0, 0, 0, 3, 4), (last, 3, 0, 4, 4), (0, 7, 0, 2, 4)])
    add("halves", 6, 8, "int8", [(last, 0, 0, 6, 4), (0, 0, 4, 6, 4)])
    return ShardingPlan(tuple(tables), tuple(shards), world)


def tensors_of(plan: ShardingPlan, rank: int, grad: bool = False) -> dict[str, list[torch.Tensor]]:
    dtypes = {table.name: getattr(torch, table.dtype) for table in plan.tables}
    local: dict[str, list[torch.Tensor]] = {}
    for shard in plan.on(rank):
        tensor = torch.zeros(shard.sizes, dtype=dtypes[shard.table], requires_grad=grad)
        local.setdefault(shard.table, []).append(tensor)
    return local


def gathered(
    plan: ShardingPlan, local: dict[str, Any], group: Any = None
) -> dict[str, ShardedTensor]:
    """The tables as torch creates them, with a gather for each."""
    me, rank = dist.get_rank(), dist.get_rank(group)
    tensors_by_name = {}
    for table in plan.tables:
        mine = [shard for shard in plan.of(table.name) if shard.rank == rank]
        shards = [
            LocalShard.from_tensor_and_offsets(tensor, list(shard.offsets), me)
            for tensor, shard in zip(local.get(table.name, []), mine, strict=True)
        ]
        tensors_by_name[table.name] = ShardedTensor._init_from_local_shards(
            shards, table.rows, table.dim, process_group=group
        )
    return tensors_by_name


def same(ours: ShardedTensor, theirs: ShardedTensor) -> bool:
    """Every field of the metadata, the spec, the tensor's own properties and the local shards."""
    a, b = ours.metadata(), theirs.metadata()
    fields = [(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__]
    fields += [(getattr(ours, f), getattr(theirs, f)) for f in ("dtype", "shape", "requires_grad")]
    fields += [(ours.sharding_spec(), theirs.sharding_spec())]
    fields += [(repr(a), repr(b)), (type(ours), type(theirs))]
    fields += [(ours._process_group, theirs._process_group)]
    local = [[shard.metadata for shard in side.local_shards()] for side in (ours, theirs)]
    fields += [(local[0], local[1])]
    return all(left == right for left, right in fields)


def equal_metadata(rank: int, world: int, folder: Path) -> Any:
    """Uneven and planned tables, with and without gradients, compared with what torch gathers."""
    gathers = [
        Table(f"t{i}", 3 + 7 * i, 64, ("float32", "float16")[i % 2], lookups=1 + i)
        for i in range(8)
    ]
    gathers.append(Table("rows", 10 * world + 1, 8, split="row"))
    answers: dict[str, Any] = {}
    for name, plan in (("odd", odd(world)), ("planned", sharding.plan(gathers, world))):
        plan = sharding.share(plan)
        for grad in (False, True):
            if grad and name == "odd":  # it has tables of integers
                continue
            local = tensors_of(plan, rank, grad)
            with counted() as calls:
                ours = sharding.sharded_tensors(plan, local, requires_grad=grad)
            theirs = gathered(plan, local)
            answers[f"{name} {grad}"] = [
                dict(calls),
                {table: same(ours[table], theirs[table]) for table in theirs},
                all(
                    sharding.metadata(plan, table, requires_grad=grad).tensor_properties
                    == theirs[table].metadata().tensor_properties
                    for table in theirs
                ),
            ]
    return answers


def collectives_of_sharing(rank: int, world: int, folder: Path) -> Any:
    """One broadcast and one all_reduce; a second broadcast if the plan is larger than a block."""
    counts = []
    for count in (1, 100, 1500):
        tables = tuple(Table(f"t{i}", 10, 4) for i in range(count))
        whole = tuple(Shard(table.name, (0, 0), (10, 4), 0) for table in tables)
        plan = ShardingPlan(tables, whole, world)
        with counted() as calls:
            shared = sharding.share(lambda plan=plan: plan, tables)
        counts.append([dict(calls), shared == plan])
    return counts


def other_group(rank: int, world: int, folder: Path) -> Any:
    """A group whose ranks are not those of the world, and a rank outside of it."""
    members = list(range(1, world))
    group = dist.new_group(members)
    plan = odd(len(members))
    if rank not in members:
        try:
            sharding.share(plan, group=group)
        except HeadwayError as error:
            return error.code
    shared_plan = sharding.share(lambda: plan, plan.tables, group=group)
    local = tensors_of(shared_plan, dist.get_rank(group))
    ours = sharding.sharded_tensors(shared_plan, local, group=group)
    theirs = gathered(shared_plan, local, group)
    return {name: same(ours[name], theirs[name]) for name in theirs}


def dtensor(rank: int, world: int, folder: Path) -> Any:
    """Compare with distribute_tensor, which scatters from rank 0."""
    mesh = init_device_mesh("cpu", (world,))
    tables = [
        Table("rows", 4 * world + 1, 8, "bfloat16", split="row"),
        Table("columns", 6, 16 * world, "float16", split="column"),
        Table("one", 1, 8, "float64", split="row"),
    ]
    plan = sharding.share(lambda: sharding.plan(tables, world), tables)
    local = tensors_of(plan, rank)
    with counted() as calls:
        ours = sharding.dtensors(plan, local, mesh)
    answers = {}
    for table in tables:
        placements = ours[table.name].placements
        whole = torch.zeros(table.rows, table.dim, dtype=getattr(torch, table.dtype))
        theirs = distribute_tensor(whole, mesh, placements)
        mine, other = ours[table.name].to_local(), theirs.to_local()
        answers[table.name] = [
            ours[table.name]._spec == theirs._spec,
            (mine.shape, mine.dtype) == (other.shape, other.dtype),
        ]
    try:
        sharding.dtensors(sharding.plan([Table("t", 4, 4, split="table")], world), {}, mesh)
    except HeadwayError as error:
        refused = error.code
    return [dict(calls), answers, refused]


def disagreement(rank: int, world: int, folder: Path) -> Any:
    """Each error is raised on every rank, and no rank waits."""

    def message(call: Callable[[], Any]) -> list[Any]:
        try:
            call()
        except HeadwayError as error:
            return [type(error).__name__, error.code, error.fields.get("rank"), str(error)]
        return []

    tables = [Table("a", 10, 4), Table("b", 10, 4, "float16" if rank == 1 else "float32")]
    mine = sharding.plan(tables, world)
    other = sharding.plan([Table("a", 10, 4)], world)
    whole = [
        ShardingPlan((Table("a", 10, 4),), (Shard("a", (0, 0), (10, 4), at),), world)
        for at in (0, 1)
    ]
    return {
        "dtype": message(lambda: sharding.share(lambda: mine, tables)),
        "missing": message(lambda: sharding.share(lambda: mine, tables[: 1 if rank == 1 else 2])),
        "plan": message(lambda: sharding.share(other if rank == 1 else mine)),
        "placement": message(lambda: sharding.share(whole[rank == 1])),
        "world": message(lambda: sharding.share(lambda: sharding.plan(tables, world + 1))),
        "memory": message(lambda: sharding.share(lambda: sharding.plan(tables, world, memory=1))),
        "nothing": message(lambda: sharding.share(None)),
        "sound": message(lambda: sharding.share(mine if rank == 0 else None)),
    }


def cached(rank: int, world: int, folder: Path) -> Any:
    """Make a plan, reuse it, damage it, make it again; only rank 0 reads the folder."""
    cache = PlanCache(folder / f"rank-{rank}")
    tables = [Table(f"t{i}", 10 + i, 4) for i in range(5)]
    hashes = []
    for _ in range(2):
        hashes.append(sharding.share(lambda: cache.plan(tables, world), tables).hash)
    if rank == 0:
        (file,) = cache.folder.iterdir()
        file.write_bytes(file.read_bytes()[:-40])
    hashes.append(sharding.share(lambda: cache.plan(tables, world), tables).hash)
    return [hashes, (folder / f"rank-{rank}").exists()]


def killed(rank: int, world: int, folder: Path) -> Any:
    """Rank 0 dies before it sends; the others must not wait for it."""

    def die() -> ShardingPlan:
        os._exit(9)

    # gloo connects the ranks one after the other: a rank that dies meanwhile fails all of them.
    (folder / f"connected-{rank}").touch()
    while len(list(folder.glob("connected-*"))) < world:
        time.sleep(0.01)
    try:
        sharding.share(die, timeout=timedelta(seconds=20))
    except HeadwayError as error:
        return error.code


def stuck(rank: int, world: int, folder: Path) -> Any:
    """A rank that does not take part: the others fail after the timeout."""
    if rank == world - 1:
        while not (folder / "gave-up").exists():
            time.sleep(0.05)
        return "waited"
    try:
        sharding.share(odd(world), timeout=timedelta(seconds=2))
    except HeadwayError as error:
        return error.code
    finally:
        (folder / "gave-up").touch()


def fork(checks: str, world: int, folder: Path) -> None:
    """Each rank runs the checks and writes its answers; `ended.json` has the exit statuses."""
    ranks = []
    for rank in range(world):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            try:
                _answer(checks, rank, world, folder)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    (folder / "ended.json").write_text(json.dumps(ended))


def _answer(checks: str, rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    said = {name: globals()[name](rank, world, folder) for name in checks.split(",")}
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    if checks not in ("killed", "stuck"):
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
