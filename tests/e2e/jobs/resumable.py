"""DDP that saves, and resumes from the newest checkpoint that can be read: resumable.py STEPS"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, EVERY = int(sys.argv[1]), 10
FOLDER = Path("checkpoints")
rank = int(os.environ["RANK"])
timeout = timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT", "60")))
if os.environ.get("IGNORE_TERM"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo", timeout=timeout)
model = nn.Sequential(nn.Linear(8, 2048), nn.ReLU(), nn.Linear(2048, 1))
net = DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def saved() -> list[Path]:
    """The newest first."""
    return sorted(FOLDER.glob("step-*.pt"), reverse=True)


def save(step: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"step-{step:06d}.pt"
    aside = path.with_suffix(".tmp")
    state = {"model": model.state_dict(), "step": step}
    if os.environ.get("SAVE_BY") == "path":
        torch.save(state, aside)
    else:
        with aside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)
    for old in saved()[2:]:
        old.unlink()


def resume() -> int:
    for path in saved():
        try:
            state = torch.load(path)
        except (RuntimeError, OSError, EOFError) as error:
            print(f"rank {rank}: {path.name} is damaged: {error}", flush=True)
            continue
        model.load_state_dict(state["model"])
        print(f"rank {rank}: resumed from {state['step']}", flush=True)
        return int(state["step"])
    return 0


step = resume()
dist.barrier()  # nobody removes what another one is about to read
for batch in DataLoader(Rows(), batch_size=4):
    if step >= STEPS:
        break
    net(batch).mean().backward()
    time.sleep(0.005)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if rank == 0 and step % EVERY == 0:
        save(step)
dist.barrier()
print(f"rank {rank}: done at {step}", flush=True)
dist.destroy_process_group()
