"""A training that ends: published inside the trainer, or left as an anchor. Told: when.

python publishing.py WAY MEGABYTES DEVICE FOLDER TOLD [--seed N]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "dlrm"))
from train import DLRM, TABLES, click_batch, export

from headway.checkpoint import Checkpointer

DIM, BATCH, STEPS = 64, 256, 5


def compiled(model: DLRM, args: argparse.Namespace, device: torch.device, path: Path) -> None:
    """What a publish makes of it, by the trainer itself."""
    dense, ids, _ = click_batch(args.seed, 0, args.batch, args.rows)
    batch = torch.export.Dim("batch")
    inputs = (dense.to(device), ids.to(device))
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=({0: batch}, {0: batch}))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


MAKES = {"export": export, "aoti": compiled}


def train(args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    args.dim, args.batch = DIM, BATCH
    args.rows = args.megabytes * 1_000_000 // (TABLES * DIM * 4)
    model = DLRM(args).to(device)
    size = sum(one.nbytes for one in model.state_dict().values())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    anchors = None
    if args.way == "anchor":
        anchors = Checkpointer(args.folder / "checkpoints", {"model": model})
    for step in range(1, STEPS + 1):
        dense, ids, clicks = (
            tensor.to(device) for tensor in click_batch(args.seed, step, BATCH, args.rows)
        )
        optimizer.zero_grad()
        bce(model(dense, ids), clicks).backward()
        optimizer.step()
        if anchors is not None and step == 1:  # as trainings save before their end
            anchors.save(step)
            anchors.wait()
    if device.type == "cuda":
        torch.cuda.synchronize()
    last = time.monotonic()
    if anchors is not None:
        dense, ids, _ = click_batch(args.seed, 0, 64, args.rows)
        anchors.anchor(
            STEPS,
            model_ref="serving:build",
            model_arguments={"rows": args.rows, "dim": DIM},
            example_inputs=(dense, ids),
        )
        anchors.close()
    elif args.way in MAKES:
        MAKES[args.way](model, args, device, args.folder / "model.pt2")
    done = time.monotonic()
    args.told.write_text(json.dumps({"last_step": last, "done": done, "model_bytes": size}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("nothing", *MAKES, "anchor"))
    parser.add_argument("megabytes", type=int)
    parser.add_argument("device")
    parser.add_argument("folder", type=Path)
    parser.add_argument("told", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
