"""The job of train.py with a start whose parts overlap: it compiles while the data warms up.

python examples/dlrm/train_headway.py --steps 200 --data-warmup 20
torchrun --standalone --nproc-per-node 2 examples/dlrm/train_headway.py --steps 200
"""

import argparse
import os
from collections.abc import Iterator

import data_service
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from train import DLRM, Batch, arguments, click_batch, evaluate, export, save

from headway import startup

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Trainer:
    """What is trained, and one step of it."""

    def __init__(self, args: argparse.Namespace, device: torch.device, state: dict | None) -> None:
        self.device = device
        self.model = DLRM(args.rows, args.dim).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.at, self.position = 0, 0  # steps trained; batches read by all ranks together
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.at, self.position = state["step"], state["position"]
        self.net: nn.Module = DistributedDataParallel(self.model) if WORLD > 1 else self.model
        if args.compile:
            self.net = torch.compile(self.net)

    def step(self, batch: Batch) -> torch.Tensor:
        dense, ids, clicks = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        loss = bce(self.net(dense, ids), clicks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self) -> dict[str, object]:
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {"step": self.at, "position": self.position, **states}


def stages(args: argparse.Namespace) -> startup.Stages:
    """The start: each stage begins when what it takes is there."""
    stages = startup.Stages(seed=args.seed)

    @stages.stage(where="main")
    def device_init() -> torch.device:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        return device

    @stages.stage(where="main")
    def process_group_init(device_init: torch.device) -> None:
        if WORLD > 1:
            dist.init_process_group("nccl" if device_init.type == "cuda" else "gloo")

    @stages.stage()
    def checkpoint_load() -> dict | None:
        args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        checkpoints = sorted(args.checkpoint_dir.glob("step_*.pt"))
        return torch.load(checkpoints[-1], map_location="cpu") if checkpoints else None

    @stages.stage()
    def preproc_creation(checkpoint_load: dict | None) -> Iterator[Batch]:
        port = args.data_service or data_service.start(args.data_warmup, args.data_rate)
        start = (checkpoint_load["position"] if checkpoint_load else 0) + RANK
        wanted = {"start": start, "stride": WORLD, "batch": args.batch, "rows": args.rows}
        return data_service.read(port, seed=args.seed, **wanted)

    @stages.stage(where="main", needs=["process_group_init"])
    def train_module_creation(device_init: torch.device, checkpoint_load: dict | None) -> Trainer:
        return Trainer(args, device_init, checkpoint_load)

    @stages.stage()
    def pt2_compile(train_module_creation: Trainer) -> None:
        trainer = train_module_creation
        sample = click_batch(args.seed, 0, args.batch, args.rows)
        ahead = startup.CompileAhead(
            trainer.step, modules=[trainer.net], optimizers=[trainer.optimizer]
        )
        ahead.start(startup.fast_batch(sample=sample)).wait()

    @stages.stage()
    def get_first_batch_data(preproc_creation: Iterator[Batch]) -> Batch:
        return next(preproc_creation)

    return stages


def train(args: argparse.Namespace) -> None:
    ready = stages(args).run()
    trainer, batches = ready.train_module_creation, ready.preproc_creation
    batch = ready.get_first_batch_data
    while trainer.at < args.steps:
        loss = trainer.step(batch)
        trainer.at, trainer.position = trainer.at + 1, trainer.position + WORLD
        if RANK == 0 and trainer.at % args.log_every == 0:
            print(f"step {trainer.at} loss {loss.item():.4f}", flush=True)
        if RANK == 0 and args.save_every and trainer.at % args.save_every == 0:
            save(args.checkpoint_dir / f"step_{trainer.at:08d}.pt", trainer.state())
        if args.eval_every and trainer.at % args.eval_every == 0:
            eval_loss = evaluate(trainer.net, args, trainer.device)
            if RANK == 0:
                print(f"step {trainer.at} eval loss {eval_loss:.4f}", flush=True)
        batch = next(batches)

    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()
    if RANK == 0 and args.export:
        path = args.checkpoint_dir / "model.pt2"
        export(trainer.model, args, trainer.device, path)
        print(f"exported {path}", flush=True)


if __name__ == "__main__":
    flags = arguments()
    flags.add_argument("--data-service", type=int, help="port of a running one; else our own")
    train(flags.parse_args())
