"""One process, a plain loop: slow model, slow first batch, a stall, a slow save, an evaluation."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from truth import Truth

truth = Truth()
truth.mark("imported")
SLOW = {0: 0.6, 20: 0.5}


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLOW.get(index, 0.0))
        return torch.ones(4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        time.sleep(0.6)
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


class Heavy:
    """Takes its time when it is pickled."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(0.8)
        return (int, ())


with truth.timed("start.train_module_creation"):
    model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Rows(), batch_size=1))
wasted = 0.0


def waste(leaf: str, start: float) -> None:
    global wasted
    truth.add(leaf, time.monotonic() - start)
    wasted += time.monotonic() - start


started = 0.0
for step in range(40):
    began = time.monotonic()
    batch = next(batches)
    if step == 0:
        truth.add("start.get_first_batch_data", time.monotonic() - began)
        started = time.monotonic()
    elif time.monotonic() - began > 0.01:
        waste("waste.data_stall", began)
    loss = model(batch).sum()
    loss.backward()
    time.sleep(0.03)
    optimizer.step()
    optimizer.zero_grad()
    ended = time.monotonic()
    if step == 10:
        began = time.monotonic()
        model.eval()
        with torch.no_grad():
            model(batch)
            time.sleep(0.5)
        model.train()
        waste("waste.evaluation", began)
    if step == 30:
        began = time.monotonic()
        torch.save({"model": model.state_dict(), "heavy": Heavy()}, "checkpoint.pt")
        waste("waste.checkpoint_block", began)
truth.add("train.effective", ended - started - wasted)
truth.mark("last_step")
time.sleep(0.5)
