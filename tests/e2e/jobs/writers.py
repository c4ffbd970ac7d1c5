"""Writes below each folder in every way there is, before and after a step: writers.py FOLDER..."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = model.state_dict()


def ways(folder: Path) -> dict[str, Callable[[], object]]:
    folder.mkdir()
    early = (folder / "early").open("wb")

    def opened() -> None:
        (folder / "opened").write_text("x")

    def renamed() -> None:
        Path("aside").write_text("x")
        os.replace("aside", folder / "renamed")

    def low() -> None:
        os.close(os.open(folder / "low", os.O_WRONLY | os.O_CREAT))

    return {
        "open": opened,
        "os.open": low,
        "mkdir": lambda: (folder / str(len(os.listdir(folder)))).mkdir(),
        "rename": renamed,
        "fsync": lambda: os.fsync(early),
        "path": lambda: torch.save(state, folder / "path.pt"),
        "file": lambda: torch.save(state, early),
        "dcp": lambda: dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True),
        "safetensors": lambda: save_file(state, folder / "a.safetensors"),
        "elsewhere": lambda: torch.save(state, "elsewhere.pt"),
        "read": lambda: torch.load(folder / "path.pt"),
    }


folders = {name: ways(Path(name)) for name in sys.argv[1:]}
for step in (1, 2):
    for folder, writes in folders.items():
        for name, write in writes.items():
            try:
                write()
            except BaseException as error:  # DCP's is no Exception
                lines = [line for line in str(error).splitlines() if "rror" in line]
                told = f"{type(error).__name__}: {lines[-1] if lines else error}"
            else:
                told = "done"
            print(f"{folder} {step} {name}: {told}")
    optimizer.step()
