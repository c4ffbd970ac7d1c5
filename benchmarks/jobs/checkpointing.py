"""One way of saving a training while it trains, timed: prints a line of JSON.

    python checkpointing.py WAY MEGABYTES FOLDER [--device cuda] [--saves 4] [--dense]

The state is a DLRM's: eight tables with sparse gradients and row-wise Adagrad, and dense layers
with Adam; `--dense` puts all bytes into dense layers. What a save costs is the time of its call and
what the steps take longer until it is on disk, against steps without a save.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

warnings.filterwarnings("ignore")
DIM, BATCH, BAG = 64, 256, 4
BETWEEN = 12  # steps from one save to the next, at least


class Training:
    """What is trained, and a step of it."""

    def __init__(self, megabytes: int, device: str, *, dense: bool) -> None:
        torch.manual_seed(0)
        self.device = device
        # A table's row has DIM weights and as many sums of Adagrad; Adam has two of each weight.
        rows = 1000 if dense else max(1000, megabytes * 1_000_000 // (8 * 2 * DIM * 4))
        layers = max(1, megabytes * 1_000_000 // (1024 * 1024 * 12)) if dense else 2
        bags = [nn.EmbeddingBag(rows, DIM, sparse=True, mode="sum") for _ in range(8)]
        self.tables = nn.ModuleList(bags).to(device)
        widths = [nn.Linear(8 * DIM, 1024), *(nn.Linear(1024, 1024) for _ in range(layers - 1))]
        self.top = nn.Sequential(*widths).to(device)
        self.rows = rows
        self.model = nn.ModuleDict({"tables": self.tables, "top": self.top})
        self.sparse = torch.optim.Adagrad(self.tables.parameters(), lr=0.01)
        self.adam = torch.optim.Adam(self.top.parameters(), fused=device == "cuda")
        self.draw = torch.Generator().manual_seed(1)

    def step(self) -> float:
        """Seconds."""
        begun = time.perf_counter()
        ids = (torch.rand(8, BATCH, BAG, generator=self.draw) ** 4 * self.rows).long()
        ids = ids.to(self.device)
        x = torch.cat([bag(one) for bag, one in zip(self.tables, ids, strict=True)], dim=1)
        loss = self.top(x).square().mean()
        for optimizer in (self.sparse, self.adam):
            optimizer.zero_grad()
        loss.backward()
        self.sparse.step()
        self.adam.step()
        loss.item()
        return time.perf_counter() - begun

    def state(self) -> dict[str, dict]:
        parts = {"model": self.model, "sparse": self.sparse, "adam": self.adam}
        return {name: part.state_dict() for name, part in parts.items()}

    def tensors(self) -> list[Tensor]:
        found = []
        for part in (self.model.state_dict(), self.sparse.state, self.adam.state):
            for value in part.values():
                found += value.values() if isinstance(value, dict) else [value]
        return [value for value in found if isinstance(value, Tensor)]


Save = Callable[[int], Callable[[], bool]]  # begins a save; the result says whether it is on disk


def torch_save(training: Training, folder: Path) -> Save:
    def save(step: int) -> Callable[[], bool]:
        with open(folder / "state.pt", "wb") as file:
            torch.save(training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: True

    return save


def dcp_save(training: Training, folder: Path) -> Save:
    def save(step: int) -> Callable[[], bool]:
        dcp.save(training.state(), checkpoint_id=folder / f"step-{step}", no_dist=True)
        return lambda: True

    return save


def dcp_async(training: Training, folder: Path) -> Save:
    _one_rank()

    def save(step: int) -> Callable[[], bool]:
        return dcp.async_save(training.state(), checkpoint_id=folder / f"step-{step}").done

    return save


def dcp_async_reused(training: Training, folder: Path) -> Save:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    _one_rank()
    pinned = training.device == "cuda"
    stager = DefaultStager(StagingOptions(pinned, pinned, False, pinned))

    def save(step: int) -> Callable[[], bool]:
        where = folder / f"step-{step}"
        done = dcp.async_save(training.state(), checkpoint_id=where, async_stager=stager)
        return getattr(done, "upload_completion", done).done

    return save


def headway(training: Training, folder: Path) -> Save:
    from headway.checkpoint import Checkpointer

    parts = {"model": training.model, "sparse": training.sparse, "adam": training.adam}
    checkpointer = Checkpointer(folder / "store", parts)

    def save(step: int) -> Callable[[], bool]:
        checkpointer.save(step)

        def done() -> bool:
            return any(o["step"] == step for o in checkpointer.outcomes())

        return done

    return save


WAYS = {
    "torch.save": torch_save,
    "dcp.save": dcp_save,
    "dcp.async_save": dcp_async,
    "dcp.async_save, reused stager": dcp_async_reused,
    "headway": headway,
}


def _one_rank() -> None:
    if not dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def limits(training: Training, folder: Path) -> dict[str, float]:
    """What nothing that copies and writes everything can beat."""
    tensors = [tensor.detach() for tensor in training.tensors()]
    copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]

    def copy() -> None:
        torch._foreach_copy_(copies, tensors)
        if training.device == "cuda":
            torch.cuda.synchronize()

    copied = min(_timed(copy) for _ in range(5))
    copies.clear()
    found = {"bytes": float(sum(t.nbytes for t in tensors)), "copy_s": copied}
    if training.device == "cuda":
        found["bus_s"] = found["bytes"] / _bus()
    raw = torch.empty(sum(t.nbytes for t in tensors), dtype=torch.uint8).numpy()

    def write() -> None:
        with open(folder / "raw", "wb", buffering=0) as file:
            view = memoryview(raw)
            for at in range(0, len(view), 1 << 26):
                file.write(view[at : at + (1 << 26)])
            os.fsync(file.fileno())

    written = min(_timed(write) for _ in range(2))
    (folder / "raw").unlink()
    return {**found, "write_s": written}


def _bus() -> float:
    """Bytes a second from the GPU to pinned memory."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return len(source) / min(_timed(copy) for _ in range(5))


def _timed(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(training: Training, save: Save, saves: int) -> dict[str, object]:
    for _ in range(8):
        training.step()
    usual = statistics.median(training.step() for _ in range(20))
    rows = []
    for number in range(saves):
        begun = time.perf_counter()
        done = save(number)
        call = time.perf_counter() - begun
        longer, durable, steps = 0.0, call if done() else 0.0, 0
        while not durable or steps < BETWEEN:
            longer += training.step() - usual
            steps += 1
            if not durable and done():
                durable = time.perf_counter() - begun
        rows.append({"call_s": call, "longer_s": longer, "durable_s": durable, "steps": steps})
    return {"step_s": usual, "saves": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=[*WAYS, "limits"])
    parser.add_argument("megabytes", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--dense", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1 if args.device == "cpu" else torch.get_num_threads())
    args.folder.mkdir(parents=True, exist_ok=True)
    training = Training(args.megabytes, args.device, dense=args.dense)
    training.step()
    if args.way == "limits":
        found: dict[str, object] = dict(limits(training, args.folder))
    else:
        found = measure(training, WAYS[args.way](training, args.folder), args.saves)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found), flush=True)
    shutil.rmtree(args.folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
