"""A small training that ends with a checkpoint: `job.py KIND`, alone or under torchrun."""

from __future__ import annotations

import os
import sys
from typing import Any

import served  # copied beside the recipe
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from headway.checkpoint import Checkpointer

KIND = sys.argv[1]
ROWS = 60


class Spread(nn.Module):
    """Answers with the help of all ranks."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, dense: Tensor, sparse: list[Tensor]) -> dict[str, Tensor]:
        said: dict[str, Tensor] = self.whole(dense, sparse)
        dist.all_reduce(said["logit"])
        return said


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model: Any = served.build(rows=ROWS)
    if KIND == "sharded":
        fully_shard(model)
    net = (
        nn.parallel.DistributedDataParallel(model)
        if KIND == "anchor" and dist.is_initialized()
        else model
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dense, sparse = served.golden()
    for _ in range(3):
        optimizer.zero_grad()
        net(dense, sparse)["logit"].sum().backward()
        optimizer.step()
    end(model, net, optimizer, (dense, sparse))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def end(model: nn.Module, net: nn.Module, optimizer: Any, inputs: Any) -> None:
    state = {"model": model, "optimizer": optimizer}
    if KIND == "file":
        torch.save({"model": model.state_dict()}, "last.tmp")
        os.replace("last.tmp", "last.pt")
        torch.save({"loss": 1.0}, "notes.pt.old")
        os.remove("notes.pt.old")
    elif KIND == "dcp":
        torch.save({"loss": 1.0}, "notes.pt")
        dcp.save({"model": model.state_dict()}, checkpoint_id="last", no_dist=True)
        torch.save({"loss": 1.0}, "notes.pt")
    elif KIND == "saves":
        checkpointer = Checkpointer("checkpoints", state)
        checkpointer.save(3)
        checkpointer.close()
    else:
        asked = Spread(model) if KIND == "spread" else net
        checkpointer = Checkpointer("checkpoints", state)
        checkpointer.anchor(
            3,
            model_ref="served:build",
            model_arguments={"rows": ROWS},
            example_inputs=inputs,
            model=asked,
            metrics={"loss": 0.5},
        )
        checkpointer.close()


if __name__ == "__main__":
    main()
