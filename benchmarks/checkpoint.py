"""What a checkpoint costs the training, when it is on disk, and how fast it comes back.

    python benchmarks/checkpoint.py [--megabytes 256,1024,2048] [--dense] [--ways NAME,...]

Headway beside torch's own ways and those of other packages, which have an environment of their own
(peers.py). Each row is a process of its own, and another one that restores what it saved last; the
bits must be the same. The true cost is the call and what the steps take longer until the checkpoint
is on disk, than those right before and right after; how much these differ says how sure that is. A
way that leaves its bytes to the page cache gets an fsync from here. Memory is what the process, its
helpers and what they share take more than the training alone. Beside it the limits, measured in the
same run: a copy of the state in warm memory, a write of its bytes with fsync, a read of them. The
first save of a process is not counted, of Headway the first two: they make buffers that later ones
use again. One or two more are, the second if it begins within four seconds. What does not work here
is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import peers
from keep import keep, machine
from memory import Memory

JOB = Path(__file__).parent / "jobs" / "checkpointing.py"
SOURCE = Path(__file__).parents[1] / "src"
TORCH = ("torch.save", "dcp save", "dcp async", "dcp async reused", "dcp async process")
OTHERS = ("torch_checkpointing", "dlrover", "torchsnapshot", "lightning async")
HEADWAY = ("headway full", "headway")
WAYS = (*HEADWAY, *TORCH, "dcp async pinned", *OTHERS)
MANY = 8  # saves of which a mean says more than a median
JOB_NAMES = ("HEADWAY_DIR", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


class Failed(Exception):
    """That way does not work here; of paths their ends are told."""

    def __init__(self, why: str) -> None:
        super().__init__(re.sub(r"/\S*/", "", why))


class Bench:
    """Runs processes of one size of one state."""

    def __init__(self, megabytes: int, options: Sequence[str], root: Path) -> None:
        self.megabytes, self.options, self.root = megabytes, options, root
        self.patience_s = 60 + megabytes / 20
        self.limits = self.run("limits", "-")
        self.device: str = self.limits.pop("device")

    def run(
        self, what: str, way: str, *more: str, job: str = "", expected: int = 0
    ) -> dict[str, Any]:
        """One process, named as one of a job or not; what it told, and the memory it used."""
        folder, told = self.root / "saves", self.root / "told.json"
        told.unlink(missing_ok=True)
        command = [_interpreter(way), str(JOB), what, way, str(self.megabytes), str(folder)]
        command += [str(told), *self.options, *more]
        env = {key: value for key, value in os.environ.items() if key not in JOB_NAMES}
        env |= {"PYTHONPATH": str(SOURCE), **({"SLURM_JOB_ID": job} if job else {})}
        with (self.root / "log").open("wb+") as log:
            process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
            memory = Memory(process.pid)
            try:
                code = process.wait(self.patience_s)
            except subprocess.TimeoutExpired:
                raise Failed(f"does not end within {self.patience_s:.0f} s") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                memory.stop()
                os.sync()
            log.seek(0)
            tail = log.read().decode(errors="replace").strip().splitlines()[-1:]
        if code != expected or not told.exists():
            raise Failed(f"ended with {code}: {' '.join(tail)}")
        found: dict[str, Any] = json.loads(told.read_text())
        if "failed" in found:
            raise Failed(found["failed"])
        if "begun_at" in found:
            found["memory"] = memory.beside(found["begun_at"], found["ended_at"])
        return found

    def measure(self, way: str, saves: int) -> dict[str, Any]:
        """The saves of one way, and what restores the last of them."""
        told = self.run("save", way, "--saves", str(saves))
        row = {**summed_up(told, self.limits), **told["memory"]}
        back = self.run("restore", way, "--step", str(len(told["saves"])))
        if back["sums"] != told["sums"]:
            raise Failed("what it restores is not what was saved")
        return {**row, "restore_s": back["restore_s"]}

    def after_kill(self, way: str) -> float:
        """Seconds of a restore from the memory that outlived a kill -9."""
        shutil.rmtree(self.root / "saves")
        job = f"bench-{uuid.uuid4().hex[:12]}"
        told = self.run("kill", way, job=job, expected=-signal.SIGKILL)
        try:
            back = self.run("restore", way, "--step", "1", job=job)
        except Failed:
            os.kill(told["writer"], signal.SIGTERM)  # it would wait for the job
            raise
        if back["source"] != "memory" or back["sums"] != told["sums"]:
            raise Failed(f"restored from {back['source']}, or other bits than were saved")
        seconds: float = back["restore_s"]
        return seconds


def _interpreter(way: str) -> str:
    if way not in OTHERS:
        return sys.executable
    try:
        return peers.python("checkpoint")
    except subprocess.CalledProcessError:
        raise Failed("its environment cannot be made: pip says why") from None


def summed_up(told: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    """Medians of the saves that count."""
    saves = told["saves"][told["first"] :]

    def median(key: str) -> float:
        return statistics.median(save[key] for save in saves)

    cost = statistics.median(save["call_s"] + max(0.0, save["longer_s"]) for save in saves)
    each = [save["call_s"] + save["longer_s"] for save in saves]  # noise goes both ways
    row = {
        "call_s": median("call_s"),
        "cost_s": cost,
        "unsure_s": median("unsure_s"),
        "cost_of_copy": cost / limits["copy_s"],
        "cost_in_steps": cost / told["step_s"],
        "slower": median("slower"),
        "done_s": median("done_s"),
        "durable_s": median("durable_s"),
        "fsyncs": told["fsyncs"],
        "step_s": told["step_s"],
        "attached": told["attached"],
        "first_call_s": told["saves"][0]["call_s"],
        "counted": len(saves),
    }
    if len(saves) >= MANY:
        row["mean_in_steps"] = statistics.mean(each) / told["step_s"]
        row["error_in_steps"] = statistics.stdev(each) / len(each) ** 0.5 / told["step_s"]
    written = [one for one in told.get("written", ()) if one["step"] > told["first"]]
    if written:
        speed = statistics.median(one["bytes"] / one["written_s"] for one in written)
        row["written_mb"] = statistics.median(one["bytes"] for one in written) / 1e6
        row["of_disk"] = speed / (limits["bytes"] / limits["write_s"])
    return row | {key: told[key] for key in ("gpu_mb",) if key in told}


def told_in_words(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"  {row['way']:<20} not here: {row['failed']}"
    memory = f"   memory {row['memory_mb']:.0f} MB" if "memory_mb" in row else ""
    mean = ""
    if "mean_in_steps" in row:
        mean = f", {row['mean_in_steps']:.2f} +- {row['error_in_steps']:.2f} in the mean"
    speed = f", {row['of_disk']:.0%} of its speed" if "of_disk" in row else ""
    after = f", after a kill {row['after_kill_s']:.2f} s" if "after_kill_s" in row else ""
    return (
        f"  {row['way']:<20} call {row['call_s'] * 1e3:7.1f} ms"
        f"   cost {row['cost_s'] * 1e3:7.1f} ms, {row['unsure_s'] * 1e3:.1f} more or less"
        f" ({row['cost_of_copy']:.2f} of a copy,"
        f" {row['cost_in_steps']:.2f} steps of {row['step_s'] * 1e3:.1f} ms{mean})"
        f"   steps x{row['slower']:.2f}, without a save x{row['attached']:.3f}"
        f"   on disk {row['durable_s']:.2f} s{'' if row['fsyncs'] else ' (by our fsync)'}{speed}"
        f"   back {row['restore_s']:.2f} s{after}{memory}"
    )


def measure(
    megabytes: int, ways: Sequence[str], options: Sequence[str], saves: int, root: Path
) -> Iterator[dict[str, Any]]:
    """The rows of one size; printed as they come."""
    bench = Bench(megabytes, options, root)
    limits = {key: value for key, value in bench.limits.items() if key.endswith("_s")}
    told = ", ".join(f"{key[:-2]} {value * 1e3:.1f} ms" for key, value in limits.items())
    beside = f"a step beside a busy process x{bench.limits['beside']:.2f}"
    print(f"{bench.limits['bytes'] / 1e6:.0f} MB: {told}, {beside}", flush=True)
    for way in ways:
        row: dict[str, Any] = {"megabytes": megabytes, "way": way, "device": bench.device}
        row["limits"] = bench.limits
        try:
            row |= bench.measure(way, saves)
            if way == "headway full":
                row["after_kill_s"] = bench.after_kill(way)
        except Failed as failed:
            row["failed"] = str(failed)
        shutil.rmtree(root / "saves", ignore_errors=True)
        print(told_in_words(row), flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", default="256,1024,2048")
    parser.add_argument("--dense", action="store_true", help="no tables")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--saves", type=int, default=2, help="that count, at most")
    parser.add_argument("--out", metavar="FILE", help="write the result there")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/checkpoint.json"
    )
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    result = {**versions(), "dense": args.dense, "rows": rows}
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder:
        for megabytes in map(int, args.megabytes.split(",")):
            options = ["--dense"] if args.dense else []
            ways = args.ways.split(",")
            for row in measure(megabytes, ways, options, args.saves, Path(folder)):
                rows.append(row)
                if args.out:  # what was measured is kept, should there be no time for the rest
                    Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    keep("checkpoint_dense" if args.dense else "checkpoint", result)


def versions() -> dict[str, Any]:
    """What was measured with."""
    found = {"python": platform.python_version(), "torch": version("torch")}
    with suppress(PackageNotFoundError):  # checksums are slower without it
        found["isal"] = version("isal")
    packages = (*peers.PACKAGES["checkpoint"], *peers.ALONE["checkpoint"])
    pinned = (package.partition("==") for package in packages)
    found |= {name: number for name, _, number in pinned if number}
    return {"machine": machine(), "versions": found}


if __name__ == "__main__":
    main()
