"""The job of train.py with a start whose parts overlap, and tables that the ranks share.

It exports nothing: it ends with an anchor, which a job of its own makes ready to serve.

python examples/dlrm/train_headway.py --steps 200 --data-warmup 20
torchrun --standalone --nproc-per-node 2 examples/dlrm/train_headway.py --steps 200
headway run --publish examples/dlrm/publish.toml -- python examples/dlrm/train_headway.py
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import data_service
import torch
import torch.distributed as dist
from sharded_tables import RANK, WORLD, ShardedTables, plan
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from train import Batch, Dense, arguments, click_batch, evaluate, save

from headway import startup
from headway.checkpoint import Checkpointer


class Model(nn.Module):
    """DLRM over all ranks: each holds some of the tables, and all of them the dense part."""

    def __init__(self, args: argparse.Namespace, plan: startup.sharding.Plan) -> None:
        super().__init__()
        self.tables = ShardedTables(plan, args)
        self.dense: nn.Module = Dense(args.dim)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.dense(dense, self.tables(ids))


class Trainer:
    """What is trained, and one step of it."""

    def __init__(
        self,
        args: argparse.Namespace,
        device: torch.device,
        plan: startup.sharding.Plan,
        state: dict[str, Any] | None,
    ) -> None:
        self.device = device
        torch.manual_seed(args.seed)
        self.model = Model(args, plan).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.at, self.position = 0, 0  # steps trained; batches read by all ranks together
        if state is not None:
            self.load(state)
        if WORLD > 1:
            self.model.dense = DistributedDataParallel(self.model.dense)
        if args.compile:
            self.model.dense.compile()

    def step(self, batch: Batch) -> Tensor:
        dense, ids, clicks = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        loss = bce(self.model(dense, ids), clicks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    # A checkpoint is one file with everything by name, so that any number of ranks can go on with
    # it. All tables pass through rank 0 for that; larger ones would go to a file of each rank.

    def state(self) -> dict[str, Any]:
        """Everything on rank 0, when all ranks ask for it; on the others what they hold."""
        held = {}
        for name, value in self.named():
            adam = {k: v.cpu() for k, v in self.optimizer.state[value].items()}
            held[name] = value.detach().cpu(), adam
        parts = [held] * WORLD
        if WORLD > 1:
            dist.gather_object(held, parts if RANK == 0 else None)
        whole = {name: one for part in parts for name, one in part.items()}
        model = {name: value for name, (value, _) in whole.items()}
        optimizer = {name: adam for name, (_, adam) in whole.items()}
        return {"step": self.at, "position": self.position, "model": model, "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        self.at, self.position = state["step"], state["position"]
        for name, value in self.named():
            value.data.copy_(state["model"][name])
            adam = state["optimizer"][name]
            moments = {k: v.to(self.device) for k, v in adam.items() if k != "step"}
            self.optimizer.state[value] = {"step": adam["step"], **moments}

    def weights(self) -> dict[str, Tensor]:
        """What this rank holds of the model."""
        return {name: value.detach() for name, value in self.named()}

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, value in self.model.named_parameters():
            yield name.replace(".module.", "."), value  # as they are named without DDP


def stages(args: argparse.Namespace) -> startup.Stages:
    """The start: each stage begins when what it takes is there."""
    stages = startup.Stages()

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
    def checkpoint_load() -> dict[str, Any] | None:
        args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        checkpoints = sorted(args.checkpoint_dir.glob("step_*.pt"))
        return torch.load(checkpoints[-1], map_location="cpu") if checkpoints else None

    @stages.stage()
    def preproc_creation(checkpoint_load: dict[str, Any] | None) -> Iterator[Batch]:
        port = args.data_service or data_service.start(args.data_warmup, args.data_rate)
        start = (checkpoint_load["position"] if checkpoint_load else 0) + RANK
        wanted = {"start": start, "stride": WORLD, "batch": args.batch, "rows": args.rows}
        return data_service.read(port, seed=args.seed, **wanted)

    @stages.stage(where="main", needs=["process_group_init"])
    def sharding_plan() -> startup.sharding.Plan:
        return plan(args)

    @stages.stage(where="main")
    def train_module_creation(
        device_init: torch.device,
        sharding_plan: startup.sharding.Plan,
        checkpoint_load: dict[str, Any] | None,
    ) -> Trainer:
        return Trainer(args, device_init, sharding_plan, checkpoint_load)

    @stages.stage(where="main")  # the step looks up in the tables of all ranks
    def pt2_compile(train_module_creation: Trainer) -> None:
        if not args.overlap:
            return  # the first batch will
        trainer = train_module_creation
        sample = click_batch(args.seed, 0, args.batch, args.rows)
        ahead = startup.CompileAhead(
            trainer.step, modules=[trainer.model], optimizers=[trainer.optimizer], together=True
        )
        ahead.start(startup.fast_batch(sample=sample)).wait()

    @stages.stage()
    def get_first_batch_data(preproc_creation: Iterator[Batch]) -> Batch:
        return next(preproc_creation)

    return stages


def mean_over_ranks(value: float) -> float:
    """By a group on the CPU: made by NCCL jobs at their first evaluation, there in gloo's."""
    if WORLD == 1:
        return value
    group = startup.groups.group(range(WORLD), "gloo", "evaluation")
    mean = torch.tensor(value / WORLD)
    dist.all_reduce(mean, group=group.pg())
    return mean.item()


def anchor(trainer: Trainer, checkpointer: Checkpointer, args: argparse.Namespace) -> None:
    """What is trained, durable, with all that a publish needs to know."""
    dense, ids, _ = click_batch(args.seed, 0, args.batch, args.rows)
    checkpointer.anchor(
        trainer.at,
        model_ref="serving:build",
        model_arguments={"rows": args.rows, "dim": args.dim},
        example_inputs=(dense, ids),
        model=trainer.model,
    )
    checkpointer.close()


def train(args: argparse.Namespace) -> None:
    ready = stages(args).run(overlap=args.overlap)
    trainer, batches = ready.train_module_creation, ready.preproc_creation
    batch = ready.get_first_batch_data
    anchors = args.checkpoint_dir / "anchors"
    checkpointer = Checkpointer(anchors, {"model": trainer.weights}) if args.export else None
    held_out = -(-args.eval_batches // WORLD) * WORLD  # a full share for each rank
    while trainer.at < args.steps:
        loss = trainer.step(batch)
        trainer.at, trainer.position = trainer.at + 1, trainer.position + WORLD
        if RANK == 0 and trainer.at % args.log_every == 0:
            print(f"step {trainer.at} loss {loss.item():.4f}", flush=True)
        if args.save_every and trainer.at % args.save_every == 0:
            state = trainer.state()
            if RANK == 0:
                save(args.checkpoint_dir / f"step_{trainer.at:08d}.pt", state)
        if args.eval_every and trainer.at % args.eval_every == 0:
            mine = range(RANK, held_out, WORLD)
            eval_loss = mean_over_ranks(evaluate(trainer.model, args, trainer.device, mine))
            if RANK == 0:
                print(f"step {trainer.at} eval loss {eval_loss:.4f}", flush=True)
        batch = next(batches)

    if checkpointer is not None:
        anchor(trainer, checkpointer, args)
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    flags = arguments()
    flags.add_argument("--data-service", type=int, help="port of a running one; else our own")
    flags.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=True, help="start side by side"
    )
    train(flags.parse_args())
