"""Train a click-through model (DLRM) on synthetic clicks, on one process or under torchrun.

python examples/dlrm/train.py --steps 200
torchrun --standalone --nproc-per-node 2 examples/dlrm/train.py --steps 200
"""

import argparse
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import rehearsal
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

DENSE, TABLES = 13, 26  # the shape of the Criteo click logs
Batch = tuple[Tensor, Tensor, Tensor]  # dense features, ids, clicks


def click_batch(seed: int, index: int, batch: int, rows: int) -> Batch:
    """Batch number `index` of an endless click log: the same arguments give the same clicks."""
    g = torch.Generator().manual_seed(seed * 1_000_003 + index)
    dense = torch.randn(batch, DENSE, generator=g)
    ids = (torch.rand(batch, TABLES, generator=g) ** 3 * rows).long()  # a few ids are popular
    taste = (ids * 2_654_435_761 % 997) / 997 - 0.5  # what each id says about the click
    odds = dense @ torch.linspace(-1, 1, DENSE) + taste.sum(dim=1)
    clicks = torch.bernoulli(odds.sigmoid(), generator=g)
    return dense, ids, clicks


class ClickStream(IterableDataset[Batch]):
    """Every `stride`-th batch from `start` on; the source is slow to open, then steady."""

    def __init__(self, args: argparse.Namespace, start: int, stride: int) -> None:
        self.args, self.start, self.stride = args, start, stride

    def __iter__(self) -> Iterator[Batch]:
        args, worker = self.args, get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        period = workers / args.data_rate if args.data_rate else 0.0
        time.sleep(args.data_warmup)
        due = time.monotonic()
        index = self.start + mine * self.stride
        while True:
            due = max(due + period, time.monotonic())  # a late reader is not paid back
            time.sleep(max(0.0, due - time.monotonic()))
            yield click_batch(args.seed, index, args.batch, args.rows)
            index += workers * self.stride


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


def table(number: int, args: argparse.Namespace) -> nn.Embedding:
    """One table of the model, the same wherever it is made."""
    g = torch.Generator().manual_seed(args.seed * TABLES + number)
    weight = torch.randn(args.rows, args.dim, generator=g) * args.dim**-0.5
    return nn.Embedding.from_pretrained(weight, freeze=False)


class Dense(nn.Module):
    """From dense features and one vector of each table to the odds of a click."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        vectors = TABLES + 1
        self.bottom = mlp(DENSE, 256, 64, dim)
        self.top = mlp(dim + vectors * (vectors - 1) // 2, 256, 128)
        self.click = nn.Linear(128, 1)

    def forward(self, dense: Tensor, looked_up: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), looked_up], dim=1)
        dots = vectors @ vectors.transpose(1, 2)
        i, j = torch.triu_indices(TABLES + 1, TABLES + 1, offset=1, device=dots.device)
        features = torch.cat([bottom, dots[:, i, j]], dim=1)
        return self.click(self.top(features)).squeeze(1)


class DLRM(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.tables = nn.ModuleList(table(number, args) for number in range(TABLES))
        self.dense = Dense(args.dim)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        looked_up = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.dense(dense, torch.stack(looked_up, dim=1))


def save(path: Path, state: dict[str, object]) -> None:
    """Write a checkpoint that is either there or not, and keep the newest two."""
    partial = path.with_suffix(".tmp")
    torch.save(state, partial)
    os.replace(partial, path)
    for old in sorted(path.parent.glob("step_*.pt"))[:-2]:
        old.unlink()


@torch.no_grad()
def evaluate(
    model: nn.Module, args: argparse.Namespace, device: torch.device, batches: range
) -> float:
    """Mean loss on held-out clicks."""
    model.eval()
    losses = []
    for index in batches:
        dense, ids, clicks = click_batch(args.seed + 1, index, args.batch, args.rows)
        losses.append(bce(model(dense.to(device), ids.to(device)), clicks.to(device)))
    model.train()
    return torch.stack(losses).mean().item()


def export(model: DLRM, args: argparse.Namespace, device: torch.device, path: Path) -> None:
    """Write the model for inference, for any batch size."""
    dense, ids, _ = click_batch(args.seed, 0, args.batch, args.rows)
    batch = torch.export.Dim("batch")
    inputs = (dense.to(device), ids.to(device))
    program = torch.export.export(model.eval(), inputs, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, path)


def train(args: argparse.Namespace) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.use_deterministic_algorithms(args.deterministic)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world > 1:
        limit = timedelta(seconds=args.group_timeout)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=limit)

    torch.manual_seed(args.seed)
    model = DLRM(args).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step, position = 0, 0  # steps trained; batches read by all ranks together
    args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    if checkpoints := sorted(args.checkpoint_dir.glob("step_*.pt")):
        state = torch.load(checkpoints[-1], map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, position = state["step"], state["position"]
        if rank == 0:
            print(f"resumed from {checkpoints[-1]}", flush=True)

    net: nn.Module = DistributedDataParallel(model) if world > 1 else model
    if args.compile:
        net = torch.compile(net, backend=args.backend)

    stream = ClickStream(args, start=position + rank, stride=world)
    batches = iter(DataLoader(stream, batch_size=None, num_workers=args.workers))
    rehearse = rehearsal.Rehearsal(args, rank)
    while step < args.steps:
        batch = next(batches)
        rehearse.takes(step + 1, position + rank, batch[1])
        dense, ids, clicks = (tensor.to(device) for tensor in batch)
        loss = bce(net(dense, ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, position = step + 1, position + world
        rehearse.stepped(step)

        if rank == 0 and step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0 and args.save_every and step % args.save_every == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            path = args.checkpoint_dir / f"step_{step:08d}.pt"
            save(path, {"step": step, "position": position, **states})
        if args.eval_every and step % args.eval_every == 0:
            eval_loss = evaluate(net, args, device, range(args.eval_batches))
            if rank == 0:
                print(f"step {step} eval loss {eval_loss:.4f}", flush=True)

    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0 and args.export:
        path = args.checkpoint_dir / "model.pt2"
        export(model, args, device, path)
        print(f"exported {path}", flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    flag = parser.add_argument
    flag("--steps", type=int, default=200, help="steps to train in all, restarts included")
    flag("--batch", type=int, default=256, help="samples per rank and step")
    flag("--rows", type=int, default=10_000, help="rows of each embedding table")
    flag("--dim", type=int, default=16, help="width of an embedding")
    flag("--lr", type=float, default=1e-3, help="learning rate of Adam")
    flag("--seed", type=int, default=0, help="of the weights and the clicks")
    flag("--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile")
    flag("--backend", default="inductor", help="of torch.compile")
    flag("--deterministic", action="store_true", help="the same model from the same data")
    flag("--group-timeout", type=float, default=1800.0, help="seconds that a rank is waited for")
    flag("--workers", type=int, default=1, help="data loader processes per rank")
    flag("--data-warmup", type=float, default=0.0, help="seconds before the first batch")
    flag("--data-rate", type=float, default=0.0, help="batches per second and rank; 0: no limit")
    flag("--checkpoint-dir", type=Path, default=Path("checkpoints"), help="saves, and resumes")
    flag("--save-every", type=int, default=50, help="steps between checkpoints; 0: none")
    flag("--eval-every", type=int, default=0, help="steps between evaluations; 0: none")
    flag("--eval-batches", type=int, default=10, help="batches per evaluation")
    flag("--log-every", type=int, default=10, help="steps between loss lines")
    flag("--export", action=argparse.BooleanOptionalAction, default=True, help="export at the end")
    rehearsal.add_flags(parser)
    return parser


if __name__ == "__main__":
    train(arguments().parse_args())
