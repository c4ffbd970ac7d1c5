"""A DLRM with TorchRec in the way its tutorials show: model and data are those of the package.

No training script ships in it. This is the shortest one that shards the tables, updates them in
the backward pass, trains through its pipeline, and keeps its checkpoints with torch's DCP.
"""

import itertools
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec.datasets.random import RandomRecDataset
from torchrec.distributed import DistributedModelParallel, TrainPipelineBase
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.optim.keyed import KeyedOptimizerWrapper

from torchrec import EmbeddingBagCollection

KEYS = [f"feature_{i}" for i in range(4)]
ROWS, STEPS, SAVE_STEPS, KEEP = 200, 160, 20, 2


def checkpoints():
    """Folders that are whole, by step: DCP writes .metadata last."""
    names = os.listdir("out") if os.path.isdir("out") else []
    whole = [name for name in names if os.path.exists(os.path.join("out", name, ".metadata"))]
    return sorted(int(name) for name in whole)


def main():
    """Train, from the last checkpoint if there is one."""
    dist.init_process_group("gloo")
    device = torch.device("cpu")
    torch.manual_seed(11)
    tables = [
        EmbeddingBagConfig(
            name=f"t_{key}", embedding_dim=16, num_embeddings=ROWS, feature_names=[key]
        )
        for key in KEYS
    ]
    bags = EmbeddingBagCollection(tables=tables, device=device)
    dlrm = DLRM(
        bags, dense_in_features=8, dense_arch_layer_sizes=[16], over_arch_layer_sizes=[16, 1]
    )
    train = DLRMTrain(dlrm)
    _apply_optimizer_in_backward(torch.optim.SGD, bags.parameters(), {"lr": 0.05})
    model = DistributedModelParallel(train, device=device)
    dense = {name: p for name, p in model.named_parameters() if "embedding_bags" not in name}
    optimizer = KeyedOptimizerWrapper(dense, lambda params: torch.optim.SGD(params, lr=0.05))
    done = max(checkpoints(), default=0)
    if done:
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=f"out/{done}")
        model.load_state_dict(state["model"])
    torch.manual_seed(dist.get_rank())
    data = RandomRecDataset(
        keys=KEYS, batch_size=16, hash_size=ROWS, ids_per_feature=3, num_dense=8,
        num_generated_batches=10,
    )  # fmt: skip
    batches = itertools.islice(iter(data), done, STEPS)
    pipeline = TrainPipelineBase(model, optimizer, device)
    for step in range(done + 1, STEPS + 1):
        pipeline.progress(batches)
        if step % SAVE_STEPS == 0:
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"out/{step}")
            dist.barrier()
            if dist.get_rank() == 0:
                for old in checkpoints()[:-KEEP]:
                    shutil.rmtree(f"out/{old}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
