"""How fast a long log is read, and in how much memory: 1 GB of one rank, a failure at its end.

Two kinds of logs: one as a training writes it (lines of progress, bars that write over themselves,
warnings, retries), and one that is the worst for the reader (every line has other words, as where
samples are printed). Each figure comes from a fresh process. Beside it stands `grep -c` of one word
in the same file, which is what reading it costs at all.

    python benchmarks/classify.py [--megabytes N]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from keep import keep

ROOT = Path(__file__).resolve().parent.parent
MEGABYTES = 1000
MUST_SECONDS, MUST_MEGABYTES = 60.0, 200.0
FAILURE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 150, in <module>
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
[rank0]: torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed
"""
# Not ru_maxrss, in which a child begins with the memory of its parent.
READ = """
import sys, time
begin = time.perf_counter()
from headway.launch.failures import classify, read_log
with open(sys.argv[1], "rb") as log:
    verdict = classify(read_log(log))
seconds = time.perf_counter() - begin
status = dict(line.split(":") for line in open("/proc/self/status"))
assert (verdict.category, verdict.rank) == ("gpu_oom", 3), verdict
print(seconds, int(status["VmHWM"].split()[0]) / 1024)
"""
TALE = """
a small model learns to write about rivers and mountains while its tokens stream by many shards of
text are read in order and every sample is printed with the words that it was given so that somebody
may look at them later in the morning over a cup of coffee
"""


def training() -> Iterator[str]:
    """Lines of a rank that trains, without end."""
    chance = random.Random(1)
    for step in range(1, sys.maxsize):
        clock = f"2025-01-01 {step // 60 % 24:02d}:{step % 60:02d}:00,{step % 1000:03d}"
        loss, norm, rate = chance.random() * 5, chance.random(), chance.random() * 9999
        yield (
            f"{clock} [rank0] INFO trainer: step {step} | loss {loss:.4f} | grad_norm {norm:.3f} "
            f"| lr {norm / 1000:.2e} | {rate:.1f} tokens/s\n"
        )
        if step % 50 == 0:
            yield (
                "\r".join(
                    f" {at}%|{'█' * (at // 10)}{' ' * (10 - at // 10)}| {step + at}/99999 "
                    f"[00:{at:02d}<10:00, 5.1it/s, loss={chance.random():.3f}]"
                    for at in range(0, 100, 5)
                )
                + "\n"
            )
        if step % 1000 == 0:
            yield f"{clock} WARNING s3: Connection reset by peer, retrying request {step}\n"
            yield "/venv/lib/x.py:12: UserWarning: lr_scheduler.step() before optimizer.step()\n"


def prose() -> Iterator[str]:
    """Lines of which no two are alike, without end."""
    chance = random.Random(2)
    while True:
        yield " ".join(chance.choices(TALE.split(), k=18)) + "\n"


def write(path: Path, lines: Iterator[str], megabytes: int) -> None:
    """A log of that size, and the failure at its end."""
    with path.open("w") as file:
        size = 0
        while size < megabytes * 1_000_000:
            block = "".join(next(lines) for _ in range(1000))
            size += file.write(block)
        file.write(FAILURE)


def measure(path: Path) -> dict[str, float]:
    """Seconds and peak memory of a fresh process, and the seconds of grep."""
    done = subprocess.run(
        [sys.executable, "-c", READ, path], capture_output=True, text=True, check=True
    )
    seconds, megabytes = map(float, done.stdout.split())
    begin = time.perf_counter()
    grep = ["grep", "-c", "OutOfMemoryError", str(path)]
    subprocess.run(grep, env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.DEVNULL, check=True)
    return {"seconds": seconds, "peak_mb": megabytes, "grep_seconds": time.perf_counter() - begin}


def main() -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--keep", action="store_true")
    size = parser.parse_args().megabytes
    rows = []
    print(f"{'log':<28}{'size':>10}{'time':>10}{'MB/s':>8}{'peak':>10}{'grep -c':>10}")
    for name, lines in (("of a training", training()), ("of other words each", prose())):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rank.log"
            write(path, lines, size)
            row = {"log": name, "megabytes": path.stat().st_size / 1e6, **measure(path)}
        rows.append(row)
        speed = row["megabytes"] / row["seconds"]
        print(
            f"{name:<28}{row['megabytes']:>7.0f} MB{row['seconds']:>8.1f} s{speed:>8.0f}"
            f"{row['peak_mb']:>7.0f} MB{row['grep_seconds']:>8.2f} s"
        )
    print(f"limits: {MUST_SECONDS:.0f} s and {MUST_MEGABYTES:.0f} MB for {MEGABYTES} MB")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    keep("classify", {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
