"""One way of saving a training while it trains, and of giving it back: writes a file of JSON.

    python checkpointing.py save WAY MEGABYTES FOLDER TOLD [--device cuda] [--saves 2] [--dense]
    python checkpointing.py restore WAY MEGABYTES FOLDER TOLD --step 4
    python checkpointing.py kill WAY MEGABYTES FOLDER TOLD
    python checkpointing.py limits - MEGABYTES FOLDER TOLD

`save`: what a save costs is the time of its call and what the steps take longer until it is on
disk, against the steps right before it and right after it, which say how sure that is. `restore`,
in another process: from there being a training until its tensors are those of the save. `kill`: one
save, then kill -9 of this process. `limits`: what nothing that copies and writes everything can
beat.
"""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import saving
import saving_peers
import torch
from trained import Training

warnings.filterwarnings("ignore")
WAYS = {**saving.WAYS, **saving_peers.WAYS}
USUAL_S, USUAL_STEPS = 2.0, 4  # at least, of steps without a save
QUIET_S = 5.0  # at most, of those between two saves
BETWEEN = 4  # steps from one save to the next, at least
TRIED = 4 << 30  # bytes at most that show how fast the disk is
PIECE = 1 << 26
NEIGHBOURLY = 15  # steps
NEIGHBOUR = "import zlib\nx = bytes(1 << 24)\nwhile True: zlib.crc32(x)"


def quiet(training: Training, until_s: float = USUAL_S) -> list[float]:
    """Seconds of steps without a save."""
    took: list[float] = []
    while len(took) < USUAL_STEPS or sum(took) < until_s:
        took.append(training.step())
    return took


def save(training: Training, way: saving.Way, saves: int, limit_s: float) -> dict[str, Any]:
    """Some saves while it trains: one that counts, and more until they are enough or take long."""
    for _ in range(2):
        training.step()
    bare = quiet(training)
    found: dict[str, Any] = {"begun_at": time.monotonic(), "fsyncs": way.fsyncs}
    found["first"] = way.first
    way.attach(training)
    training.step()
    rows: list[dict[str, Any]] = []
    until, before = 0.0, quiet(training)
    while len(rows) <= way.first or (len(rows) < way.first + saves and time.monotonic() < until):
        if len(rows) == way.first:
            until = time.monotonic() + limit_s
        if rows:
            way.forget(len(rows))
        found["sums"] = training.sums()
        row = one_save(training, way, len(rows) + 1)
        after = quiet(training, min(QUIET_S, max(USUAL_S, row["steps_s"])))
        rows.append(row | compared(row, before, after))
        before = after
    found |= {"ended_at": time.monotonic(), **way.told()}
    way.close()
    bare += quiet(training)
    each = sum(before) / len(before)
    return {**found, "step_s": each, "attached": each * len(bare) / sum(bare), "saves": rows}


def compared(row: dict[str, Any], before: list[float], after: list[float]) -> dict[str, Any]:
    """The steps of a save with those around it."""
    each = sum(before + after) / len(before + after)
    drift = abs(sum(before) / len(before) - sum(after) / len(after)) / 2
    drained = row["drain_steps"]
    return {
        "longer_s": row["steps_s"] - row["steps"] * each,
        "unsure_s": row["steps"] * drift,
        "slower": row["drain_steps_s"] / drained / each if drained else 1.0,
    }


def one_save(training: Training, way: saving.Way, number: int) -> dict[str, Any]:
    begun = time.monotonic()
    way.save(number)
    call = time.monotonic() - begun
    watch = saving.Watch(way, number)
    row: dict[str, Any] = {"call_s": call, "steps": 0, "steps_s": 0.0}
    row |= {"drain_steps": 0, "drain_steps_s": 0.0}
    while not watch.durable_at or row["steps"] < BETWEEN:
        draining = not watch.durable_at
        took = training.step()
        row["steps"] += 1
        row["steps_s"] += took
        if draining:
            row["drain_steps"] += 1
            row["drain_steps_s"] += took
    if watch.failed is not None:
        raise watch.failed
    row |= {"done_s": watch.done_at - begun, "durable_s": watch.durable_at - begun}
    return row


def restore(training: Training, way: saving.Way, step: int) -> dict[str, Any]:
    """What was saved last, into a training that has made a step."""
    for path in saving.files(way.folder):  # not from the page cache
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun = time.monotonic()
    way.attach(training)
    attached = time.monotonic()
    source = way.load(step)
    _synchronize(training)
    ended = time.monotonic()
    found = {"restore_s": ended - begun, "of_that_attach_s": attached - begun, "source": source}
    found["sums"] = training.sums()
    way.close()
    return found


def kill(training: Training, way: saving.Way, told: Path) -> None:
    """After a save that is whole in memory at least."""
    way.attach(training)
    way.save(1)
    sums = training.sums()
    while not way.done(1):
        time.sleep(saving.POLL_S)
    told.write_text(json.dumps({"sums": sums, **way.told()}))
    os.kill(os.getpid(), signal.SIGKILL)


def limits(training: Training, folder: Path) -> dict[str, Any]:
    """Of memory, device, bus and disk."""
    tensors = training.tensors()
    copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]

    def copy() -> None:
        torch._foreach_copy_(copies, tensors)
        _synchronize(training)

    copied = min(_timed(copy) for _ in range(5))
    copies.clear()
    size = sum(tensor.nbytes for tensor in tensors)
    found: dict[str, Any] = {"device": "cpu", "bytes": size, "copy_s": copied}
    if training.device == "cuda":
        found |= {"device": torch.cuda.get_device_name(), "bus_s": size / _bus()}
    found["beside"] = _beside(training)
    path, tried = folder / "raw", min(size, TRIED)
    raw = memoryview(torch.ones(tried, dtype=torch.uint8).numpy())
    found["write_s"] = min(_timed(lambda: _write(path, raw)) for _ in range(2)) * size / tried
    found["read_s"] = _timed(lambda: _read(path, raw)) * size / tried
    path.unlink()
    return found


def _beside(training: Training) -> float:
    """How much longer a step takes while another process sums bytes: cores are not always whole."""
    alone = [training.step() for _ in range(NEIGHBOURLY)]
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        time.sleep(0.3)
        together = [training.step() for _ in range(NEIGHBOURLY)]
    finally:
        neighbour.kill()
        neighbour.wait()
    return sum(together) / sum(alone)


def _write(path: Path, content: memoryview) -> None:
    with open(path, "wb", buffering=0) as file:
        for at in range(0, len(content), PIECE):
            file.write(content[at : at + PIECE])
        os.fsync(file.fileno())


def _read(path: Path, into: memoryview) -> None:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for at in range(0, len(into), PIECE):
            file.readinto(into[at : at + PIECE])


def _bus() -> float:
    """Bytes a second from the GPU to pinned memory."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return len(source) / min(_timed(copy) for _ in range(5))


def _synchronize(training: Training) -> None:
    if training.device == "cuda":
        torch.cuda.synchronize()


def _timed(call: Callable[[], Any]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def work(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked for."""
    args.folder.mkdir(parents=True, exist_ok=True)
    way = None if args.what == "limits" else WAYS[args.way](args.folder)
    training = Training(args.megabytes, args.device, dense=args.dense, step_s=args.step_s)
    training.step()
    if way is None:
        return limits(training, args.folder)
    if args.what == "restore":
        return restore(training, way, args.step)
    if args.what == "kill":
        kill(training, way, args.told)
    found = save(training, way, args.saves, args.limit_s)
    if args.device == "cuda":
        found["gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("save", "restore", "kill", "limits"))
    parser.add_argument("way", choices=[*WAYS, "-"])
    parser.add_argument("megabytes", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("told", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--saves", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=4.0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--dense", action="store_true")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    try:
        found = work(args)
    except Exception as error:
        first = (str(error).strip() or "no reason given").splitlines()[0]
        found = {"failed": f"{type(error).__name__}: {first}"}
    args.told.write_text(json.dumps(found))
    for helper in multiprocessing.active_children():
        helper.kill()
    os._exit(0)  # past threads and groups that a way has left


if __name__ == "__main__":
    main()
