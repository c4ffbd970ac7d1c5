"""Steps at a steady rate from the newest checkpoint on, a save, and a kill of itself: for soak.py.

python soaking.py RATE LIFE_S

In $SOAKING: `last.pt`, the checkpoint; `stop`, whose presence ends the job well; `ranks.jsonl`,
what this process needs in the middle of its life and at the end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

RATE, LIFE_S = float(sys.argv[1]), float(sys.argv[2])
FOLDER = Path(os.environ["SOAKING"])


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """Without an end."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            yield torch.ones(1)


def needs() -> dict[str, int]:
    """Memory in kB, descriptors and threads of this process."""
    status = Path("/proc/self/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    counts = {name: len(os.listdir(f"/proc/self/{where}")) for name, where in WHERE.items()}
    return {"rss_kb": int(rss.split()[1]), **counts}


WHERE = {"descriptors": "fd", "threads": "task"}
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=1e-6)
step = 0
if (FOLDER / "last.pt").exists():
    step = torch.load(FOLDER / "last.pt")["step"]
start, first = time.monotonic(), step
sampled: list[dict[str, int]] = []
saves = 0
for number in DataLoader(Numbers(), batch_size=None):
    (weight * number).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    ahead = start + (step - first) / RATE - time.monotonic()
    if ahead > 0:
        time.sleep(ahead)
    if step % 100:
        continue
    age = time.monotonic() - start
    if len(sampled) < (age >= LIFE_S / 2) + (age >= LIFE_S - 1):
        sampled.append(needs())
    if (FOLDER / "stop").exists():
        break
    if saves < (age >= LIFE_S / 3) + (age >= LIFE_S - 2):  # the first starts what saves need
        saves += 1
        torch.save({"step": step}, FOLDER / "new.pt")
        os.replace(FOLDER / "new.pt", FOLDER / "last.pt")
    if age >= LIFE_S:
        with open(FOLDER / "ranks.jsonl", "a") as file:
            middle, end = sampled[0], sampled[-1]
            print(json.dumps({"made": step - first, "middle": middle, "end": end}), file=file)
        os.kill(os.getpid(), signal.SIGKILL)
