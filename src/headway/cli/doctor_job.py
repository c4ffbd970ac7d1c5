"""The job that `headway doctor` starts: a sample of everything that the probe records."""

from __future__ import annotations

import os
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Five steps: a process group of one, a compile, a save, a load and an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        train(folder)
    print(sys.version.split()[0], torch.__version__, torch.cuda.is_available())


def train(folder: str) -> None:
    """The job itself, in a temporary folder."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = DataLoader(TensorDataset(torch.ones(5, 4)), batch_size=1)
    path = os.path.join(folder, "checkpoint.pt")
    torch.save(model.state_dict(), path)
    torch.load(path)
    forward = torch.compile(model, backend="eager")
    for (batch,) in rows:
        forward(batch).sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    torch.save(model.state_dict(), path)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
