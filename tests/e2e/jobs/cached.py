"""Trains a model that torch.compile compiles, and checks each step against eager.

A word `name=text` makes a file in the cache folder, as a compile does, and `name=x*1000` one of
that size; the others are orders.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

words = sys.argv[1:]
if "ask" in words:  # torch is there, and nothing is compiled
    sys.exit()
ranked = "RANK" in os.environ
if ranked:
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
if "deaf" in words:  # it lives on when its launcher is killed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
compiled = torch.compile(net, backend=os.environ.get("BACKEND", "inductor"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batch = torch.linspace(-1, 1, 32).reshape(4, 8)
for word in words:
    if "=" in word:
        name, _, text = word.partition("=")
        text, _, times = text.partition("*")
        path = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text * int(times or 1))
for _ in range(3):
    loss = compiled(batch).square().mean()
    torch.testing.assert_close(loss, net(batch).square().mean())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    os.write(1, f"loss {loss.item().hex()}\n".encode())  # at once: other ranks write too
for word in words:
    if word.startswith("meet:"):  # until another job has come as far
        here, there = word.split(":")[1:]
        Path(here).touch()
        while not Path(there).exists():
            time.sleep(0.01)
    if word.startswith("break:"):  # the store is gone, and something else is in its place
        store = Path(word.partition(":")[2])
        store.rename(f"{store}.gone")
        store.touch()
if "die" in words and not os.path.exists("died"):
    Path("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if ranked:
    dist.destroy_process_group()
