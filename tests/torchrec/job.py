"""One rank that shards TorchRec's modules: python job.py CASE; the environment is torchrun's."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed._shard.sharded_tensor import ShardedTensor  # noqa: E402
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology  # noqa: E402
from torchrec.distributed.planner.types import ParameterConstraints  # noqa: E402
from torchrec.modules.embedding_configs import (  # noqa: E402
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

from headway.errors import HeadwayError  # noqa: E402
from headway.integrations import torchrec as adapter  # noqa: E402
from headway.startup import sharding  # noqa: E402
from torchrec import EmbeddingBagCollection, EmbeddingCollection  # noqa: E402

FOLDER = Path(os.environ["FOLDER"])
TYPES = ("table_wise", "row_wise", "column_wise")
CALLS: dict[str, int] = {}


def count(name: str) -> None:
    """Count the calls of a collective, wherever it is called from."""
    real = getattr(dist.distributed_c10d, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] = CALLS.get(name, 0) + 1
        return real(*args, **kwargs)

    for module in (dist, dist.distributed_c10d):
        setattr(module, name, call)


class Model(torch.nn.Module):
    """The tables alone, so that DistributedModelParallel finds them below a name."""

    def __init__(self, tables: Any) -> None:
        super().__init__()
        self.tables = tables


def model(tables: int, *, bags: bool = False, rows: int = 0) -> Model:
    """Tables of uneven rows and mixed dtypes; every eleventh has fewer rows than ranks."""
    config: Any = EmbeddingBagConfig if bags else EmbeddingConfig
    configs = [
        config(
            name=f"t{i}",
            embedding_dim=128,  # a part of a table cut by columns has half of it
            num_embeddings=rows or (1 if i % 11 == 5 else 20 + i),
            feature_names=[f"f{i}"],
            data_type=DataType.FP16 if i % 3 == 2 else DataType.FP32,
        )
        for i in range(tables)
    ]
    kind: Any = EmbeddingBagCollection if bags else EmbeddingCollection
    return Model(kind(tables=configs, device=torch.device("meta")))


def planner(
    tables: int, types: tuple[str, ...] = TYPES, batch: int = 32
) -> EmbeddingShardingPlanner:
    """TorchRec's own, told how to shard each table."""
    constraints = {
        f"t{i}": ParameterConstraints(sharding_types=[types[i % len(types)]]) for i in range(tables)
    }
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    return EmbeddingShardingPlanner(
        topology=topology, constraints=constraints, batch_size=batch, debug=False
    )


SHARDERS: Any = [EmbeddingCollectionSharder(), EmbeddingBagCollectionSharder()]


def sharded(made: Model, plan: Any) -> tuple[Any, float, dict[str, int]]:
    """The module on this rank, the seconds it took, and the collectives."""
    CALLS.clear()
    dist.barrier()
    start = time.perf_counter()
    found = DistributedModelParallel(
        made, device=torch.device("cpu"), plan=plan, sharders=SHARDERS, init_data_parallel=False
    )
    return found, time.perf_counter() - start, dict(CALLS)


def described(module: Any) -> dict[str, str]:
    """All that state_dict tells of each table, and what this rank holds of it."""
    found = {}
    for name, value in module.state_dict().items():
        assert isinstance(value, ShardedTensor), name
        held = [shard.metadata for shard in value.local_shards()]
        found[name] = repr([value.metadata(), value.sharding_spec(), held, value.dtype])
    return found


def forward(module: Any, tables: int) -> list[float]:
    """A lookup of row 0 in every table; the weights are the same however they were sharded."""
    for name, value in module.state_dict().items():
        for shard in value.local_shards():
            shard.tensor.fill_(0.5 + len(name))
    keys = [f"f{i}" for i in range(tables)]
    features = KeyedJaggedTensor(
        keys=keys,
        values=torch.zeros(2 * tables, dtype=torch.int64),
        lengths=torch.ones(2 * tables, dtype=torch.int64),
    )
    out = module.module.tables(features).wait()
    return [float(out[key].values().float().sum()) for key in keys]


def equal(tables: int, kernel: str) -> Any:
    """Gathered, and not: the same plan, the same metadata, the same outputs."""
    plan = planner(tables).collective_plan(model(tables), SHARDERS, dist.group.WORLD)
    for one in plan.plan["tables"].values():
        one.compute_kernel = kernel  # on the CPU the planner knows one of them only
    theirs, theirs_s, theirs_calls = sharded(model(tables), plan)
    with adapter.installed():
        ours, ours_s, ours_calls = sharded(model(tables), plan)
    a, b = described(theirs), described(ours)
    types = {one.sharding_type for one in plan.plan["tables"].values()}
    return {
        "types": sorted(types),
        "same": [name for name in a if a[name] == b[name]] == list(a) == list(b),
        "dtypes": sorted({str(v.dtype) for v in ours.state_dict().values()}),
        # The forward pass of TorchRec's dense kernel failed here before anything was patched.
        "forward": kernel == "dense" or forward(theirs, tables) == forward(ours, tables),
        "gathers": [c.get("all_gather_object", 0) for c in (theirs_calls, ours_calls)],
        "all": ours_calls,
        "seconds": [theirs_s, ours_s],
        "restored": "_without_gathers" not in repr(ShardedTensor._init_from_local_shards),
    }


def bags(tables: int) -> Any:
    """An EmbeddingBagCollection, which TorchRec itself makes without gathering."""
    made = planner(tables, ("table_wise", "column_wise"))
    plan = made.collective_plan(model(tables, bags=True), SHARDERS, dist.group.WORLD)
    theirs, _, _ = sharded(model(tables, bags=True), plan)
    with adapter.installed():
        ours, _, calls = sharded(model(tables, bags=True), plan)
    return {"same": described(theirs) == described(ours), "calls": calls}


def cached(tables: int) -> Any:
    """Planned, found, damaged, asked otherwise, and with a module that is not the same."""
    plans = adapter.PlanCache(FOLDER / "plans")
    planned: list[int] = []
    real = EmbeddingShardingPlanner.plan

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        planned.append(1)
        return real(self, *args, **kwargs)

    EmbeddingShardingPlanner.plan = counting  # type: ignore[method-assign]

    def ask(rows: int = 0, batch: int = 32) -> tuple[Any, float, int]:
        planned.clear()
        dist.barrier()
        start = time.perf_counter()
        asked = planner(tables, batch=batch)
        plan = adapter.collective_plan(
            asked, model(tables, rows=rows), SHARDERS, dist.group.WORLD, plans=plans
        )
        return plan, time.perf_counter() - start, len(planned)

    first, first_s, first_planned = ask()
    theirs = planner(tables).collective_plan(model(tables), SHARDERS, dist.group.WORLD)
    second, second_s, second_planned = ask()
    dist.barrier()
    if dist.get_rank() == 0:
        for path in plans.folder.iterdir():
            path.write_bytes(path.read_bytes().replace(b"row_wise", b"row_wize"))
    third, _, third_planned = ask()
    _, _, batch_planned = ask(batch=64)
    _, _, rows_planned = ask(rows=50)
    try:
        ask(rows=60 + dist.get_rank())
        said = None
    except HeadwayError as error:
        said = {"code": error.code, "text": str(error)}
    with adapter.installed(plans.folder):
        planned.clear()
        through = planner(tables).collective_plan(model(tables), SHARDERS, dist.group.WORLD)
        patched = len(planned)
    return {
        "equal": [one == theirs for one in (first, second, third, through)],
        "order": [list(one.plan["tables"]) == list(theirs.plan["tables"]) for one in (second,)],
        "planned": [first_planned, second_planned, third_planned, batch_planned, rows_planned],
        "patched": patched,
        "said": said,
        "seconds": [first_s, second_s],
    }


def compared(count: int, ranks: int) -> Any:
    """Headway's planner beside TorchRec's: the same tables, both judged by Headway's model."""
    random.seed(0)
    tables = [
        sharding.Table(
            f"t{i}",
            rows=int(10 ** random.uniform(2, 6.5)),
            dim=random.choice([32, 64, 128]),
            lookups=random.choice([1, 5, 20, 80]),
        )
        for i in range(count)
    ]
    configs = [
        EmbeddingBagConfig(
            name=t.name, embedding_dim=t.dim, num_embeddings=t.rows, feature_names=[f"f_{t.name}"]
        )
        for t in tables
    ]
    bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    constraints = {t.name: ParameterConstraints(pooling_factors=[t.lookups]) for t in tables}
    theirs = EmbeddingShardingPlanner(
        topology=Topology(world_size=ranks, compute_device="cuda", hbm_cap=2**40),
        constraints=constraints,
        debug=False,
    )
    start = time.perf_counter()
    planned = theirs.plan(Model(bags), SHARDERS).plan["tables"]
    theirs_s = time.perf_counter() - start
    start = time.perf_counter()
    ours = sharding.plan(tables, ranks)
    ours_s = time.perf_counter() - start
    memory, load = [0] * ranks, [0.0] * ranks
    for table in tables:
        one = planned[table.name]
        whole = [[table.rows, table.dim]] * ranks  # a copy on each rank
        shards = one.sharding_spec.shards if one.sharding_spec else None
        sizes = [shard.shard_sizes for shard in shards] if shards else whole
        held = [shard.placement.rank() for shard in shards] if shards else range(ranks)
        for size, rank in zip(sizes, held, strict=True):
            memory[rank] += table.memory(size)
            share = 1 / ranks if not shards else 1.0  # each looks up its own samples only
            load[rank] += table.load(size) * share
    kinds = [one.sharding_type for one in planned.values()]
    mine = sharding.balance(ours)
    other = sharding.Balance(tuple(memory), tuple(load))
    return {
        "headway": [ours_s, mine.memory_ratio, mine.load_ratio, max(mine.memory), max(mine.load)],
        "torchrec": [
            theirs_s,
            other.memory_ratio,
            other.load_ratio,
            max(other.memory),
            max(other.load),
        ],
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "shards": len(ours.shards),
    }


def main() -> None:
    """One case; each rank writes what it has to say."""
    case, *words = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    logging.disable(logging.WARNING)  # of every topology that is made by hand
    for name in ("all_gather_object", "all_gather", "broadcast", "all_reduce", "barrier"):
        count(name)
    said = globals()[case](*(int(word) if word.isdigit() else word for word in words))
    (FOLDER / f"said-{dist.get_rank()}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
