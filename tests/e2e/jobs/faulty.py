"""Sixty steps with a save after each ten; resumes. faulty.py KIND RANK STEP[,STEP] once|always

KIND is what happens on that rank after that step (see `fault`; `none` is a job without a fault),
and again after the next STEP; `always`: in each further life after the last one.
PAUSE in the environment is how long each step takes.
"""

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

kind, who, often = sys.argv[1], int(sys.argv[2]), sys.argv[4]
steps = [int(step) for step in sys.argv[3].split(",")]
faults = os.path.getsize("done") if os.path.exists("done") else 0
at = steps[min(faults, len(steps) - 1)]
pause = float(os.environ.get("PAUSE", "0.01"))
ranked = "RANK" in os.environ
if ranked:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranked else 0


def last_words(*_: object) -> None:
    time.sleep(7)
    open("saved", "w").close()
    os._exit(0)


if kind == "grace" and rank == 0:
    signal.signal(signal.SIGTERM, last_words)
net: torch.nn.Module = torch.nn.Linear(4, 1)
if ranked:
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
done = torch.load("last.pt") if os.path.exists("last.pt") else 0
with open("tries", "a") as tries:
    tries.write("x")


def fault() -> None:
    if often == "once" and faults >= len(steps):
        return
    with open("done", "a") as done:
        done.write("x")
    if kind in ("kill", "loop"):
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "killagent":
        os.kill(os.getppid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "bug":
        raise KeyError("no such column")
    if kind == "reset":
        raise ConnectionResetError(104, "Connection reset by peer")
    if kind == "vanish":
        shutil.rmtree("run")
        sys.exit(7)
    if kind == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if kind == "daemon":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(f"/dev/shm/torch_{os.getpid()}_1_0", "w+b") as file:
            file.write(b"x")
            file.flush()
            shared = mmap.mmap(file.fileno(), 1)
            time.sleep(3)  # the launcher records the mapped files of ranks once a second
            print(shared[:1])
            os.kill(os.getpid(), signal.SIGKILL)


if at == 0 and rank == who:
    fault()
for step in range(done + 1, 61):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(pause)
    if step % 10 == 0 and (kind != "loop" or step <= 10):
        if rank == 0:
            torch.save(step, "new.pt")
            os.replace("new.pt", "last.pt")
        if ranked:
            dist.barrier()
    if rank == who and step == at + (os.path.getsize("tries") if kind == "loop" else 0):
        fault()
if kind == "early" and rank == who:
    os._exit(0)
if kind == "early":
    time.sleep(3)
elif ranked:
    dist.destroy_process_group()
