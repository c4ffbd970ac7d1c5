"""Under --async-save: killed while the save of step 20 is being written; resumes from step 10."""

import os
import signal
import threading
import time

import torch

free = threading.Event()  # what is synced is held back until this is set
free.set()
real = os.fsync


def held(handle: int) -> None:
    free.wait()
    real(handle)


os.fsync = held
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
resumed = os.path.exists("last.pt")
first = torch.load("last.pt")["step"] if resumed else 0
for step in range(first + 1, 41):
    net(torch.ones(2, 4)).sum().backward()
    time.sleep(0.02)
    optimizer.step()
    if step % 10 == 0:
        if step == 20 and not resumed:
            free.clear()
        torch.save({"net": net.state_dict(), "step": step, "more": torch.ones(100_000)}, "last.pt")
    if step == 25 and not resumed:
        os.kill(os.getpid(), signal.SIGKILL)
