"""A training with a large state, to be killed: saved by torch.save, or by a Checkpointer.

It ends at a given time of the clock, whatever was trained. The interval of torch.save follows
Young's law from what its saves cost: the best that a careful user can do with it.
"""

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

WIDTH = 8192  # of a layer
BATCH = 4096
ADAM = 3  # floats kept for each weight: itself and two moments


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    flag = parser.add_argument
    flag("folder", type=Path)
    flag("--way", choices=("plain", "headway"), required=True)
    flag("--until", type=float, required=True, help="seconds since the epoch")
    flag("--mtbf", type=float, default=60.0, help="seconds between two failures")
    flag("--gigabytes", type=float, default=11.0, help="of weights and moments")
    flag("--width", type=int, default=WIDTH)
    flag("--batch", type=int, default=BATCH)
    flag("--device", default="cuda")
    return parser.parse_args()


args = arguments()
args.folder.mkdir(parents=True, exist_ok=True)
(args.folder / "pid").write_text(str(os.getpid()))  # before anything that takes time

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Tower(nn.Module):
    """Wide layers, one on the other."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Plain:
    """torch.save to a new name, then a rename; the newest two are kept."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.cost = 0.0
        self.last = time.monotonic()

    def restore(self) -> int:
        found = sorted(args.folder.glob("step_*.pt"))
        if not found:
            return 0
        state = torch.load(found[-1], map_location=args.device, mmap=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.cost = state["cost"]
        step: int = state["step"]
        return step

    def stepped(self, step: int) -> None:
        wanted = math.sqrt(2 * self.cost * args.mtbf) if self.cost else args.mtbf / 4
        if time.monotonic() - self.last >= wanted:
            self.save(step)

    def save(self, step: int) -> None:
        begun = time.monotonic()
        states: dict[str, Any] = {"model": self.model.state_dict()}
        states["optimizer"] = self.optimizer.state_dict()
        partial = args.folder / "new.tmp"
        torch.save({"step": step, "cost": self.cost, **states}, partial)
        os.replace(partial, args.folder / f"step_{step:08d}.pt")
        for old in sorted(args.folder.glob("step_*.pt"))[:-2]:
            old.unlink()
        self.last = time.monotonic()
        self.cost = self.last - begun

    def close(self) -> None:
        """All is written."""


class Headway:
    """Snapshots in memory every few seconds, a checkpoint on disk now and then."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from headway.checkpoint import Checkpointer

        state = {"model": model, "optimizer": optimizer}
        store = args.folder / "store"
        self.saver = Checkpointer(
            store, state, memory_interval=args.mtbf / 30, interval=args.mtbf / 2
        )

    def restore(self) -> int:
        restored = self.saver.restore()
        return restored.step if restored else 0

    def stepped(self, step: int) -> None:
        if self.saver.due(step):
            self.saver.save(step)

    def close(self) -> None:
        self.saver.close()


def main() -> None:
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    layers = math.ceil(args.gigabytes * 1e9 / (ADAM * 4 * args.width**2))
    with torch.device(args.device):
        model = Tower(layers, args.width)
        x = torch.randn(args.batch, args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    saver = (Plain if args.way == "plain" else Headway)(model, optimizer)
    step = saver.restore()
    print(f"{args.way}: {layers} layers, from step {step}", flush=True)
    while time.time() < args.until:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            loss.item()  # the host does not run further ahead than that
        saver.stepped(step)
    saver.close()
    print(f"{args.way}: step {step}", flush=True)


if __name__ == "__main__":
    main()
