"""Starts trainings that save in real processes, and finds their writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import wait_until

JOB = Path(__file__).parent / "checkpointed" / "levels.py"


def launched(ranks: int, job: str, headway: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """What stands before the script, and its environment; `job` is one that may come back."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWAY", "TORCHELASTIC"))}
    env |= {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if job:
        env["SLURM_JOB_ID"] = job
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if headway:
        launcher = [sys.executable, "-m", "headway", *headway, "--", *launcher]
    return launcher, env


def start(
    folder: Path, *words: str, ranks: int = 1, job: str = "", headway: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """One training, in a process group of its own; it saves to `store` and tells in `out`."""
    launcher, env = launched(ranks, job, headway)
    return subprocess.Popen(
        [*launcher, str(JOB), str(folder / "store"), str(folder / "out"), *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def told(folder: Path, ranks: int = 1) -> list[dict[str, Any]]:
    """What each rank has told at its end."""
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(ranks)]


def run(folder: Path, *words: str, code: int = 0, **how: Any) -> list[dict[str, Any]]:
    """One training to its end; what its ranks have told."""
    process = start(folder, *words, **how)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == code, output[-3000:]
    return told(folder, how.get("ranks", 1)) if code == 0 else []


def wait_for(*paths: Path) -> None:
    """Until all are there."""
    wait_until(lambda: all(path.exists() for path in paths), every=0.01)


def writers(folder: Path) -> set[int]:
    """Checkpoint writers of trainings in a folder, or below it."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            where = Path(os.readlink(process / "cwd"))
        except OSError:
            continue
        if b"headway.checkpoint.writer" in words and where.is_relative_to(folder.resolve()):
            found.add(int(process.name))
    return found


@contextmanager
def no_writer_is_left(folder: Path) -> Iterator[None]:
    """Those that work for this folder are told to end."""
    yield
    for pid in writers(folder):
        os.kill(pid, 15)
