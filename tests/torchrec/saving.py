"""Saves a model with fused tables while it trains, and looks at what each save gives back.

    torchrun --nproc-per-node 2 saving.py FOLDER OPTIMIZER
    torchrun --nproc-per-node 1 saving.py FOLDER OPTIMIZER restore

Every rank prints a line of JSON for each save; `restore`: one, of what is there.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from typing import Any

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.distributed.embedding import EmbeddingCollectionSharder  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology  # noqa: E402
from torchrec.distributed.planner.types import ParameterConstraints  # noqa: E402
from torchrec.modules.embedding_configs import EmbeddingConfig  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

from headway.checkpoint import Checkpointer  # noqa: E402
from headway.checkpoint.store.store import Store  # noqa: E402
from torchrec import EmbeddingCollection  # noqa: E402

OPTIMIZERS: Any = {
    "rowwise": (RowWiseAdagrad, {"lr": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
}
TABLES = {  # rows, how they are cut, features
    "large": (40_000, "row_wise", ["a"]),
    "shared": (20_000, "table_wise", ["b", "c"]),
    "cut": (10_000, "column_wise", ["d"]),
    "small": (300, "row_wise", ["e"]),
}
DIM = 64
ROWS = {key: rows for rows, _, keys in TABLES.values() for key in keys}
BATCH, SAVES, STEPS = 64, 6, 3


def trained(kind: str) -> Any:
    configs = [
        EmbeddingConfig(name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=keys)
        for name, (rows, _, keys) in TABLES.items()
    ]
    tables = EmbeddingCollection(tables=configs, device=torch.device("meta"))
    optimizer, options = OPTIMIZERS[kind]
    apply_optimizer_in_backward(optimizer, tables.parameters(), dict(options))
    constraints = {
        name: ParameterConstraints(sharding_types=[how], min_partition=DIM // 2)
        for name, (_, how, _) in TABLES.items()
    }
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    sharders: Any = [EmbeddingCollectionSharder()]
    planner = EmbeddingShardingPlanner(topology=topology, constraints=constraints, debug=False)
    plan = planner.collective_plan(tables, sharders, dist.GroupMember.WORLD)
    return DistributedModelParallel(
        tables, device=torch.device("cpu"), plan=plan, sharders=sharders
    )


def checkpointer(model: Any, store: str) -> Checkpointer:
    parts = {"model": model, "optimizer": model.fused_optimizer}
    return Checkpointer(store, parts, writer_idle_s=0.1, full_every=4)


def step(model: Any) -> None:
    lengths = torch.randint(0, 4, (len(ROWS), BATCH), dtype=torch.int32)
    counts = zip(ROWS.values(), lengths.sum(1).tolist(), strict=True)
    ids = torch.cat([torch.randint(0, rows, (count,)) for rows, count in counts])
    batch = KeyedJaggedTensor.from_lengths_sync(list(ROWS), ids, lengths.view(-1))
    sum(one.values().square().sum() for one in model(batch).values()).backward()


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Copies of this rank's own."""
    found: dict[str, Any] = dict(model.state_dict())
    for name, kept in model.fused_optimizer.state_dict()["state"].items():
        found |= {f"{name}.{key}": value for key, value in kept.items()}
    return {
        f"{name}.{at}": shard.tensor.detach().clone()
        for name, value in found.items()
        for at, shard in enumerate(value.local_shards())
    }


def sums(found: dict[str, torch.Tensor]) -> dict[str, int]:
    """Of the bits of each table and of what is kept of it, however it is cut."""
    mine: dict[str, int] = {}
    for name, tensor in found.items():
        whole = name.rpartition(".")[0]
        mine[whole] = mine.get(whole, 0) + int(tensor.view(torch.int32).long().sum())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    total: Counter[str] = Counter()
    for one in everyone:
        total.update(one)
    return dict(total)


def restored(model: Any, store: str) -> dict[str, Any]:
    again = checkpointer(model, store)
    found = again.restore()
    again.close()
    assert found is not None
    return {"step": found.step, "notes": found.notes, "sums": sums(tensors(model))}


def say(told: dict[str, Any]) -> None:
    os.write(1, f"{json.dumps(told)}\n".encode())  # by one call: ranks share the output


def main() -> None:
    store, kind, *restoring = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = trained(kind)
    if restoring:
        say(restored(model, store))
    else:
        save(model, trained(kind), store)
    dist.barrier()
    os._exit(0)


def save(model: Any, other: Any, store: str) -> None:
    saves = checkpointer(model, store)
    for number in range(1, SAVES + 1):
        for _ in range(STEPS):
            step(model)
        if number == SAVES:
            with torch.no_grad():
                model.state_dict()["embeddings.large.weight"].local_shards()[0].tensor.add_(1)
        wanted = tensors(model)
        saves.save(number)
        for _ in range(STEPS):  # while it is copied
            step(model)
        saves.wait()
        told = restored(other, store)
        found = tensors(other)
        told["equal"] = found.keys() == wanted.keys() and all(
            torch.equal(found[name], wanted[name]) for name in wanted
        )
        newest = Store(store).scan()[0][0].manifest
        say({**told, "kind": newest.kind, "bytes": newest.size})
    saves.close()


if __name__ == "__main__":
    main()
