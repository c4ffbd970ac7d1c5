"""A training loop killed by SIGKILL: its samples and its weights at the end."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import lazy

torch = lazy("torch")

TRAIN = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from headway.checkpoint.data import GlobalBatches, Position

if __name__ == "__main__":
    file, workers = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(50, 4), torch.arange(50))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = GlobalBatches(data, 4, seed=5)
    source = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    position, ids, step = Position(source, optimizer=optimizer), [], 0
    if os.path.exists(file):
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        position.load_state_dict(saved["position"])
        ids, step = saved["ids"], saved["step"]

    def save():
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        parts |= {"position": position.state_dict(), "ids": ids, "step": step}
        torch.save(parts, file + ".draft")
        os.replace(file + ".draft", file)

    for epoch in range(position.epoch, 2):
        for x, number in position:
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            ids += number.tolist()
            step += 1
            if step % 3 == 0:
                save()
            print(step, flush=True)
    save()
"""


def train(script: Path, file: Path, workers: int, kill_after: int | None) -> int:
    """Start it, kill it after so many steps of this life, and give back its exit code."""
    command = [sys.executable, str(script), str(file), str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout, 1):
            if number == kill_after:
                process.kill()
                break
    return process.returncode


def result(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(file)
    return found


@pytest.mark.timeout(120)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kills_change_neither_samples_nor_weights(tmp_path: Path, workers: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    assert train(script, tmp_path / "calm", 0, None) == 0
    for kill_after in (7, 10):  # in the first epoch, and in the second
        assert train(script, tmp_path / "rough", workers, kill_after) == -9
    assert train(script, tmp_path / "rough", workers, None) == 0
    calm, rough = result(tmp_path / "calm"), result(tmp_path / "rough")
    assert Counter(rough["ids"]) == dict.fromkeys(range(50), 2)
    assert rough["ids"] == calm["ids"] and rough["step"] == calm["step"] == 26
    for name, weights in calm["model"].items():
        assert torch.equal(weights, rough["model"][name])
