"""Metadata of sharded tables: a gather for each, against one broadcast and what a plan tells.

    python benchmarks/shard_metadata.py [--tables 26,200,1000] [--ranks 2,4,8] [--keep]

Half of the tables are cut by rows, half lie on one rank; the dtypes are mixed. Both ways make real
ShardedTensors, in the same processes, one after the other. The slowest rank counts, and the best of
the rounds: two for what takes seconds, ten for what takes milliseconds; medians are in the file.
Every field of all metadata is compared before a figure is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from keep import keep, machine
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import ShardedTensor

from headway.startup import sharding
from headway.startup.sharding import Shard, ShardingPlan, Table

SHORT = 10  # rounds
DTYPES = ("float32", "float16", "bfloat16")


def made(count: int, ranks: int) -> ShardingPlan:
    """Tables of a few rows: nothing here depends on their size."""
    tables, shards = [], []
    for index in range(count):
        table = Table(f"table_{index}", 4 * ranks, 8, DTYPES[index % 3])
        tables.append(table)
        if index % 2:
            parts = [((4 * rank, 0), (4, 8), rank) for rank in range(ranks)]
        else:
            parts = [((0, 0), (table.rows, table.dim), index // 2 % ranks)]
        shards += [Shard(table.name, offsets, sizes, rank) for offsets, sizes, rank in parts]
    return ShardingPlan(tuple(tables), tuple(shards), ranks)


def gathered(plan: ShardingPlan, local: dict[str, list[torch.Tensor]]) -> dict[str, ShardedTensor]:
    """torch's own way: every table asks all ranks."""
    rank = dist.get_rank()
    found = {}
    for table in plan.tables:
        mine = [shard for shard in plan.of(table.name) if shard.rank == rank]
        shards = [
            LocalShard.from_tensor_and_offsets(tensor, list(shard.offsets), rank)
            for tensor, shard in zip(local.get(table.name, []), mine, strict=True)
        ]
        found[table.name] = ShardedTensor._init_from_local_shards(shards, table.rows, table.dim)
    return found


def timed(make: Callable[[], Any], rounds: int) -> tuple[list[float], Any]:
    """Seconds of the slowest rank in each round; and what was made."""
    rounds_s = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        found = make()
        took = torch.tensor([time.perf_counter() - start])
        dist.all_reduce(took, dist.ReduceOp.MAX)
        rounds_s.append(took.item())
    return rounds_s, found


def rank_main(count: int, rounds: int) -> None:
    """One rank; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    plan = made(count, ranks)
    local: dict[str, list[torch.Tensor]] = {}
    dtypes = {table.name: getattr(torch, table.dtype) for table in plan.tables}
    for shard in plan.on(rank):
        tensor = torch.zeros(shard.sizes, dtype=dtypes[shard.table])
        local.setdefault(shard.table, []).append(tensor)

    def planned() -> dict[str, ShardedTensor]:
        return sharding.sharded_tensors(sharding.share(lambda: plan, plan.tables), local)

    timed(lambda: gathered(made(2, ranks), {n: local[n] for n in list(local)[:2]}), 1)
    ours_s, ours = timed(planned, SHORT)
    shared_s, _ = timed(lambda: sharding.share(lambda: plan, plan.tables), SHORT)
    theirs_s, theirs = timed(lambda: gathered(plan, local), rounds)
    for name in theirs:
        assert ours[name].metadata() == theirs[name].metadata(), name
        assert ours[name].sharding_spec() == theirs[name].sharding_spec(), name
        held = [[shard.metadata for shard in one[name].local_shards()] for one in (ours, theirs)]
        assert held[0] == held[1], name
    equal = torch.tensor([len(theirs)])
    dist.all_reduce(equal)
    if rank == 0:
        print(json.dumps([theirs_s, ours_s, shared_s, int(equal.item())]))
    dist.destroy_process_group()


def measured(count: int, ranks: int, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "--log-dir", folder, __file__]
        command += ["--rank-of", str(count), "--rounds", str(rounds)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    theirs, ours, shared, equal = json.loads(done.stdout.splitlines()[-1])
    assert equal == count * ranks
    return {
        "tables": count,
        "ranks": ranks,
        "gathered_ms": min(theirs) * 1e3,
        "planned_ms": min(ours) * 1e3,
        "of_it_broadcast_ms": min(shared) * 1e3,
        "times_faster": min(theirs) / min(ours),
        "median_gathered_ms": median(theirs) * 1e3,
        "median_planned_ms": median(ours) * 1e3,
        "equal": equal,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default="26,200,1000")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rank-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="rewrite the file in results/")
    args = parser.parse_args()
    if args.rank_of is not None:
        rank_main(args.rank_of, args.rounds)
        return
    rows = []
    print("tables ranks   gathered    planned  (broadcast)  times faster  equal metadata")
    for count in map(int, args.tables.split(",")):
        for ranks in map(int, args.ranks.split(",")):
            row = measured(count, ranks, args.rounds)
            rows.append(row)
            print(
                f"{count:6} {ranks:5} {row['gathered_ms']:7.0f} ms {row['planned_ms']:7.1f} ms "
                f"{row['of_it_broadcast_ms']:8.1f} ms {row['times_faster']:13.0f} "
                f"{row['equal']:15,}",
                flush=True,
            )
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    keep("shard_metadata", {"machine": machine(), **versions, "rows": rows})


if __name__ == "__main__":
    main()
