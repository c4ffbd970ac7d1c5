"""From kill -9 of the last of two ranks to the first new step of all, by launcher.

    python benchmarks/recover.py [--kills 10] [--ranks 2] [--job tiny|dlrm] [--only NAME] [--keep]

Every launcher runs the same job, which writes down its own first step (jobs/stepping.py); the kill
and the clock are this program's. Compared are Headway with warm starts, Headway without, torchrun's
own --max-restarts and nvidia-resiliency-ext's ft_launcher. Where the seconds went is told by
Headway's ledger, which watches torchrun too. torchrun gets the one setting that makes its restarts
work with gloo at all (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, see docs/recover.md). The limit is a
fork of this very process tree's size and a step of the job: nothing can be faster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import peers
from keep import keep, machine

HERE = Path(__file__).resolve().parent
HEADWAY = [sys.executable, "-m", "headway"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
JOBS = {
    "tiny": [str(HERE / "jobs" / "tiny.py")],
    # 40,000 rows of 16 floats in 26 tables, and Adam's two moments: 200 MB
    "dlrm": [
        str(HERE.parent / "examples" / "dlrm" / "train.py"),
        *("--rows", "40000", "--batch", "64", "--steps", "1000000"),
        *("--save-every", "5", "--no-export"),
    ],
}
NAMES = ("headway warm", "headway cold", "torchrun", "ft_launcher")


class Session:
    """One job under one launcher, killed again and again."""

    def __init__(self, name: str, job: str, ranks: int, kills: int, folder: Path) -> None:
        self.name, self.folder, self.ranks, self.kills = name, folder, ranks, kills
        self.steps = folder / "steps"
        self.steps.mkdir()
        self.random = random.Random(7)
        self.dlrm = job == "dlrm"
        env = {
            **os.environ,
            "STEPPING": str(self.steps),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / f"cache-{job}"),
        }
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*self.command(), str(HERE / "jobs" / "stepping.py"), *JOBS[job]],
            cwd=folder,
            env=env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def command(self) -> list[str]:
        """The launcher, up to the script."""
        ranks = ["--nproc-per-node", str(self.ranks)]
        headway = [*HEADWAY, "run", "-o", "run"]
        torchrun = [*TORCHRUN, *ranks]
        more = str(self.kills + 2)
        if self.name == "torchrun":
            return [*headway, "--", *torchrun, "--max-restarts", more]
        if self.name == "ft_launcher":
            binary = Path(peers.python("recover")).parent / "ft_launcher"
            where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29577"]
            flags = ["--ignore-missing-fault-tol-cfg", "--max-restarts", more]
            return [str(binary), *where, "--nnodes", "1", *ranks, *flags]
        warm = ["--warm"] if self.name == "headway warm" else []
        return [*headway, *warm, "--restarts", more, "--", *torchrun]

    def newest(self) -> float:
        """When the job last saved."""
        folder = self.folder / "checkpoints" if self.dlrm else self.folder
        newest = 0.0
        for path in folder.glob("*.pt"):
            with contextlib.suppress(FileNotFoundError):  # the job keeps two
                newest = max(newest, path.stat().st_mtime)
        return newest

    def pids(self) -> dict[int, int]:
        """The ranks that have made a step and live, with their processes."""
        found = {}
        for path in self.steps.glob("?-*"):
            rank, _, pid = path.name.partition("-")
            if pid.isdecimal() and os.path.exists(f"/proc/{pid}"):
                found[int(rank)] = int(pid)
        return found

    def all_new(self, old: dict[int, int]) -> bool:
        """Whether every rank has made a step in another process than before."""
        now = self.pids()
        return now.keys() == old.keys() and all(now[rank] != old[rank] for rank in old)

    def wait(self, what: str, ready: object, limit: float = 120.0) -> None:
        until = time.monotonic() + limit
        while not ready():  # type: ignore[operator]
            if time.monotonic() > until or self.process.poll() is not None:
                tail = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name}: {what} did not come\n{tail}")
            time.sleep(0.01)

    def measure(self) -> list[float]:
        """Seconds from each kill to the first step of all ranks."""
        self.wait("a first step", lambda: len(self.pids()) == self.ranks, 300)
        if self.name == "headway warm":
            memory = self.folder / "run" / "warm.json"
            self.wait("the forkserver", lambda: memory.exists() and "seconds" in memory.read_text())
        took = []
        for _ in range(self.kills):
            resumed = time.time()
            self.wait("a checkpoint", lambda since=resumed: self.newest() > since)
            time.sleep(self.random.uniform(0.2, 1.0))
            before = self.pids()
            killed = time.monotonic()
            os.kill(before[self.ranks - 1], signal.SIGKILL)
            self.wait("a step after the kill", lambda old=before: self.all_new(old))
            firsts = [
                float((self.steps / f"{rank}-{pid}").read_text())
                for rank, pid in self.pids().items()
            ]
            took.append(max(firsts) - killed)
            print(f"  {self.name}: {took[-1]:.3f} s", file=sys.stderr, flush=True)
        return took

    def buckets(self) -> dict[str, float]:
        """Where a recovery's seconds went, on average, by Headway's ledger."""
        run = self.folder / "run"
        if not run.exists():
            return {}
        out = subprocess.run(
            [*HEADWAY, "report", str(run), "--json"], capture_output=True, text=True
        )
        ledger = json.loads(out.stdout)
        times = len(ledger["time_to_recover_s"]) or 1
        return {
            leaf.removeprefix("recover."): round(seconds / times, 4)
            for leaf, seconds in ledger["buckets"].items()
            if leaf.startswith("recover.")
        }

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


def limit() -> float:
    """Seconds of a fork of a process with torch in it, and its end: the least of ten."""
    program = (
        "import os, time, torch\n"
        "def once():\n"
        "    start = time.perf_counter()\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    return time.perf_counter() - start\n"
        "print(min(once() for _ in range(10)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return float(done.stdout)


def compare(job: str, names: list[str], ranks: int, kills: int) -> dict[str, object]:
    """All launchers, one after the other, in this run."""
    rows: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            session = Session(name, job, ranks, kills, folder)
            try:
                took = session.measure()
            except RuntimeError as error:
                print(error, file=sys.stderr)
                rows[name] = {"failed": str(error).splitlines()[0]}
                continue
            finally:
                session.end()
            rows[name] = {
                "median_s": round(statistics.median(took), 4),
                "min_s": round(min(took), 4),
                "max_s": round(max(took), 4),
                "kills": len(took),
                "mean_by_bucket_s": session.buckets(),
            }
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--name", default="recover", help="of the file that --keep writes")
    parser.add_argument("--job", choices=JOBS, action="append")
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    names = args.only or list(NAMES)
    result: dict[str, object] = {
        "machine": machine(),
        "ranks": args.ranks,
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "fork_of_torch_s": round(limit(), 4),
    }
    for job in args.job or list(JOBS):
        rows = compare(job, names, args.ranks, args.kills)
        result[job] = rows
        show(job, rows)
    keep(args.name, result)


def show(job: str, rows: dict[str, object]) -> None:
    print(f"\n{job}: from kill -9 of the last rank to the first new step of all, seconds")
    base = rows.get("torchrun", {})
    torchrun = base.get("median_s") if isinstance(base, dict) else None
    for name, row in rows.items():
        assert isinstance(row, dict)
        if "failed" in row:
            print(f"  {name:14} {row['failed']}")
            continue
        ratio = f"  1/{torchrun / row['median_s']:.1f} of torchrun" if torchrun else ""
        spread = f"{row['min_s']:.3f}-{row['max_s']:.3f}"
        print(f"  {name:14} median {row['median_s']:.3f}  ({spread}, {row['kills']} kills){ratio}")
        parts = sorted(row["mean_by_bucket_s"].items(), key=lambda part: -part[1])
        told = ", ".join(f"{leaf} {seconds:.3f}" for leaf, seconds in parts if seconds >= 0.001)
        if told:
            print(f"{'':17}{told}")


if __name__ == "__main__":
    main()
