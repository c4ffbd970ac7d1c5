"""The job of train.py with a start whose parts overlap, and tables that the ranks share.

Its saves go on beside the training and outlive its ranks in memory. It exports nothing: it ends
with an anchor, which a job of its own makes ready to serve.

python examples/dlrm/train_headway.py --steps 200 --data-warmup 20
torchrun --standalone --nproc-per-node 2 examples/dlrm/train_headway.py --steps 200
headway run --publish examples/dlrm/publish.toml -- python examples/dlrm/train_headway.py
"""

import argparse
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import data_service
import torch
import torch.distributed as dist
from rehearsal import Rehearsal
from sharded_tables import RANK, WORLD, ShardedTables, plan
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from train import Batch, Dense, arguments, click_batch, evaluate

from headway import startup
from headway.checkpoint import Checkpointer


class Model(nn.Module):
    """DLRM over all ranks: each holds some of the tables, and all of them the dense part."""

    def __init__(self, args: argparse.Namespace, plan: startup.sharding.ShardingPlan) -> None:
        super().__init__()
        self.tables = ShardedTables(plan, args)
        self.dense: nn.Module = Dense(args.dim)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.dense(dense, self.tables(ids))


class Live:
    """A part of the state by the names that it has on any number of ranks."""

    def __init__(self, state_dict: Callable[[], dict[str, Any]]) -> None:
        self.state_dict = state_dict

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """Nothing is left to do: tensors that are there were read in place."""


class Trainer:
    """What is trained, and one step of it."""

    def __init__(
        self, args: argparse.Namespace, device: torch.device, plan: startup.sharding.ShardingPlan
    ) -> None:
        self.device = device
        torch.manual_seed(args.seed)
        self.model = Model(args, plan).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        for value in self.model.parameters():  # there before the first step, to be read into
            moments = {"exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
            self.optimizer.state[value] = {"step": torch.tensor(0.0), **moments}
        self.at, self.position = 0, 0  # steps trained; batches read by all ranks together
        state = {"model": Live(self.weights), "optimizer": Live(self.moments), "at": self.where}
        saves = args.checkpoint_dir / "saves"
        self.checkpointer = Checkpointer(saves, state, optimizers=[self.optimizer])
        if restored := self.checkpointer.restore():
            self.at, self.position = restored.values["at"]
            if RANK == 0:
                print(f"resumed from step {self.at}, {restored.source}", flush=True)
        if WORLD > 1:
            self.model.dense = DistributedDataParallel(self.model.dense)
        if args.compile:
            self.model.dense.compile(backend=args.backend)

    def step(self, batch: Batch) -> Tensor:
        dense, ids, clicks = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        loss = bce(self.model(dense, ids), clicks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def weights(self) -> dict[str, Tensor]:
        """What this rank holds of the model."""
        return {name: value.detach() for name, value in self.named()}

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """What Adam keeps for it."""
        return {name: dict(self.optimizer.state[value]) for name, value in self.named()}

    def where(self) -> tuple[int, int]:
        """Steps trained, and batches read: the next one is the first that was not trained on."""
        return self.at, self.position

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
            limit = timedelta(seconds=args.group_timeout)
            backend = "nccl" if device_init.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=limit)

    @stages.stage()
    def preproc_creation() -> int:
        return args.data_service or data_service.start(args.data_warmup, args.data_rate)

    @stages.stage(where="main", needs=["process_group_init"])
    def sharding_plan() -> startup.sharding.ShardingPlan:
        return plan(args)

    @stages.stage(where="main")
    def train_module_creation(
        device_init: torch.device, sharding_plan: startup.sharding.ShardingPlan
    ) -> Trainer:
        return Trainer(args, device_init, sharding_plan)

    @stages.stage()
    def batches(preproc_creation: int, train_module_creation: Trainer) -> Iterator[Batch]:
        start = train_module_creation.position + RANK
        wanted = {"start": start, "stride": WORLD, "batch": args.batch, "rows": args.rows}
        return data_service.read(preproc_creation, seed=args.seed, **wanted)

    @stages.stage(where="main")  # the step looks up in the tables of all ranks
    def pt2_compile(train_module_creation: Trainer) -> None:
        if not (args.overlap and args.compile):
            return  # the first batch will, if anything is compiled
        trainer = train_module_creation
        sample = click_batch(args.seed, 0, args.batch, args.rows)
        ahead = startup.CompileAhead(
            trainer.step, modules=[trainer.model], optimizers=[trainer.optimizer], collective=True
        )
        ahead.start(startup.fast_batch(sample=sample)).wait()

    @stages.stage()
    def get_first_batch_data(batches: Iterator[Batch]) -> Batch:
        return next(batches)

    return stages


def mean_over_ranks(value: float) -> float:
    """By a group on the CPU: made by NCCL jobs at their first evaluation, there in gloo's."""
    if WORLD == 1:
        return value
    group = startup.process_groups.group(range(WORLD), "gloo", "evaluation")
    mean = torch.tensor(value / WORLD)
    dist.all_reduce(mean, group=group.pg())
    return mean.item()


def anchor(trainer: Trainer, args: argparse.Namespace) -> None:
    """What is trained, durable, with all that a publish needs to know."""
    dense, ids, _ = click_batch(args.seed, 0, args.batch, args.rows)
    trainer.checkpointer.anchor(
        trainer.at,
        model_ref="serving:build",
        model_arguments={"rows": args.rows, "dim": args.dim},
        example_inputs=(dense, ids),
        model=trainer.model,
    )


def save(trainer: Trainer, args: argparse.Namespace) -> None:
    """To disk, or in between to memory that outlives this process."""
    if args.save_every and trainer.at % args.save_every == 0:
        trainer.checkpointer.save(trainer.at)
    elif args.snapshot_every and trainer.at % args.snapshot_every == 0:
        trainer.checkpointer.save(trainer.at, level="memory")


def train(args: argparse.Namespace) -> None:
    torch.use_deterministic_algorithms(args.deterministic)
    args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    ready = stages(args).run(overlap=args.overlap)
    trainer, batches = ready.train_module_creation, ready.batches
    batch = ready.get_first_batch_data
    rehearse = Rehearsal(args, RANK)
    held_out = -(-args.eval_batches // WORLD) * WORLD  # a full share for each rank
    while trainer.at < args.steps:
        rehearse.takes(trainer.at + 1, trainer.position + RANK, batch[1])
        loss = trainer.step(batch)
        trainer.at, trainer.position = trainer.at + 1, trainer.position + WORLD
        rehearse.stepped(trainer.at)
        if RANK == 0 and trainer.at % args.log_every == 0:
            print(f"step {trainer.at} loss {loss.item():.4f}", flush=True)
        save(trainer, args)
        if args.eval_every and trainer.at % args.eval_every == 0:
            mine = range(RANK, held_out, WORLD)
            eval_loss = mean_over_ranks(evaluate(trainer.model, args, trainer.device, mine))
            if RANK == 0:
                print(f"step {trainer.at} eval loss {eval_loss:.4f}", flush=True)
        batch = next(batches)

    if args.export:
        anchor(trainer, args)
    trainer.checkpointer.close()
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    flags = arguments()
    flags.add_argument("--data-service", type=int, help="port of a running one; else our own")
    flags.add_argument(
        "--snapshot-every", type=int, default=0, help="steps between saves to memory; 0: none"
    )
    flags.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=True, help="start side by side"
    )
    train(flags.parse_args())
