"""Train the click-through model on two ranks, kill one, and show where the time went."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
BIN = Path(os.path.relpath(Path(sys.executable).parent))
LOST_S = 3.0  # seconds of training between the checkpoint and the kill
TRAIN = (
    "--steps 400 --save-every 100 --log-every 50 --data-warmup 3 --data-rate 20 --eval-every 200"
)


def has_compiler() -> bool:
    """Whether torch.compile finds a C++ compiler for the CPU."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def start_job(run: Path, checkpoints: Path) -> subprocess.Popen[bytes]:
    headway = [BIN / "headway", "run", "-o", run, "--"]
    torchrun = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2"]
    train = [EXAMPLES / "dlrm" / "train.py", "--checkpoint-dir", checkpoints, *TRAIN.split()]
    if not has_compiler():
        print("demo: there is no g++, so the model is not compiled", flush=True)
        train.append("--no-compile")
    else:
        print("demo: torch compiles the model first, which can take a minute", flush=True)
    # The store of torch 2.13 is shared over attempts; restarted ranks may then hang on gloo.
    # Errors only: torch also logs warnings about the compiler, the other rank's end, and a machine
    # that has a CUDA compiler but no GPU.
    env = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "-all",
    }
    return subprocess.Popen([str(word) for word in headway + torchrun + train], env=env)


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def is_rank(pid: int, rank: int) -> bool:
    try:
        return f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def find_rank(root: int, rank: int) -> int | None:
    """The topmost process below `root` that is this rank: its data loaders carry RANK too."""
    tree = parents()
    level = {root}
    while level:
        level = {pid for pid, parent in tree.items() if parent in level}
        for pid in level:
            if is_rank(pid, rank):
                return pid
    return None


def kill_rank_after_checkpoint(job: subprocess.Popen[bytes], rank: int, checkpoints: Path) -> None:
    while job.poll() is None and not any(checkpoints.glob("step_*.pt")):
        time.sleep(0.1)
    time.sleep(LOST_S)
    pid = find_rank(job.pid, rank)
    if pid is None:
        print(f"demo: rank {rank} is not running, nothing to kill", file=sys.stderr, flush=True)
        return
    print(f"demo: kill -9 {pid} (rank {rank}); torchrun will restart the job", flush=True)
    os.kill(pid, signal.SIGKILL)


def main() -> int:
    run = Path("headway") / time.strftime("demo-%Y%m%d-%H%M%S")
    with tempfile.TemporaryDirectory(prefix="headway-demo-") as folder:
        checkpoints = Path(folder)
        job = start_job(run, checkpoints)
        kill_rank_after_checkpoint(job, rank=1, checkpoints=checkpoints)
        code = job.wait()
    print(f"\nThe report: {run / 'report.html'}")
    print(f"Next, type: {BIN / 'headway'} report {run}")
    return code


if __name__ == "__main__":
    sys.exit(main())
