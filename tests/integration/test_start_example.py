"""The reference trainer, in real ranks: its results, and a rank that is killed in its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.run import load
from tests.support import free_port, lazy, wait_until

torch = lazy("torch")
pytestmark = pytest.mark.timeout(110)

EXAMPLE = Path(__file__).parents[2] / "examples" / "dlrm"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SMALL = ("--batch", "32", "--rows", "200", "--dim", "4", "--no-export", "--log-every", "1")

# Runs a trainer of the example, deterministic and quick to compile; KILL names the function in
# which rank 1 is killed, if that has not happened yet.
DRIVER = r"""
import functools, os, pathlib, runpy, signal, sys, time
from datetime import timedelta

example, trainer = os.environ["EXAMPLE"], sys.argv.pop(1)
sys.path.insert(0, example)
import torch
import torch.distributed as dist

torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
compile_ = torch.nn.Module.compile
torch.nn.Module.compile = functools.partialmethod(compile_, backend="aot_eager")
if "KILL" in os.environ:
    import data_service, sharded_tables

    module, name = os.environ["KILL"].split(".")
    module = {"sharded_tables": sharded_tables, "data_service": data_service}[module]
    real, killed = getattr(module, name), pathlib.Path("killed")

    def deadly(*args):
        result = real(*args)
        if os.environ["RANK"] == "1" and not killed.exists():
            while not dist.is_initialized():  # who dies before is waited for as long as torch says
                time.sleep(0.01)
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, deadly)
    connect = dist.init_process_group
    dist.init_process_group = functools.partial(connect, timeout=timedelta(seconds=15))

runpy.run_path(os.path.join(example, trainer), run_name="__main__")
os._exit(0)  # torch 2.13 with gloo sometimes aborts on the way out
"""


def job(folder: Path, trainer: str, *words: str) -> list[str]:
    """The command of a driver in this folder, without the launcher."""
    folder.mkdir(exist_ok=True)
    (folder / "driver.py").write_text(DRIVER)
    return ["driver.py", trainer, *SMALL, "--checkpoint-dir", "saves", *words]


def environment(**more: str) -> dict[str, str]:
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **quiet, "EXAMPLE": str(EXAMPLE), **more}


def run(folder: Path, ranks: int, trainer: str, *words: str) -> tuple[dict[str, Any], str]:
    """The newest checkpoint of a run, and its output."""
    launcher = TORCHRUN if ranks == 2 else (sys.executable,)
    done = subprocess.run(
        [*launcher, *job(folder, trainer, *words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return newest(folder / "saves"), done.stdout


def newest(saves: Path) -> dict[str, Any]:
    """The content of the last save: a file of train.py, or a checkpoint of train_headway.py."""
    if files := list(saves.glob("step_*.pt")):
        found: dict[str, Any] = torch.load(max(files))
        return found
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    from headway.checkpoint.store.store import Store

    one = Store(str(saves / "saves")).latest_valid().checkpoint
    assert one is not None
    dcp_to_torch_save(one.path, saves / "newest.pt")
    found = torch.load(saves / "newest.pt", weights_only=False)
    return {"step": one.step, "model": found["model"], "optimizer": found["optimizer"]}


def equal(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(torch.equal(one, other)) if torch.is_tensor(one) else one == other


def wait_until_nothing_is_left(folder: Path) -> None:
    """All processes with this working directory end within some seconds."""

    def working() -> bool:
        return any(_works_in(process, folder) for process in Path("/proc").glob("[0-9]*"))

    wait_until(lambda: not working(), 20, every=0.1)


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return os.readlink(process / "cwd") == str(folder)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_overlapped_start_trains_the_same_model(tmp_path: Path, ranks: int) -> None:
    words = ("--steps", "4", "--save-every", "2")
    overlapped, _ = run(tmp_path / "overlapped", ranks, "train_headway.py", *words)
    one_by_one, _ = run(tmp_path / "serial", ranks, "train_headway.py", *words, "--no-overlap")
    assert overlapped["step"] == 4 and equal(overlapped, one_by_one)

    store = tmp_path / "resumed" / "saves" / "saves"
    shutil.copytree(tmp_path / "serial" / "saves" / "saves", store)
    shutil.rmtree(max(store.glob("step-*")))
    resumed, output = run(tmp_path / "resumed", ranks, "train_headway.py", *words)
    assert "step 3 loss" in output and "step 2 loss" not in output
    assert equal(resumed, overlapped)


@pytest.mark.slow
def test_shared_tables_train_what_ddp_trains(tmp_path: Path) -> None:
    words = ("--steps", "5", "--save-every", "5", "--eval-every", "5", "--eval-batches", "4")
    theirs, told = run(tmp_path / "ddp", 2, "train.py", *words, "--no-compile")
    ours, also = run(tmp_path / "headway", 2, "train_headway.py", *words, "--no-compile")
    lines = [line for line in told.splitlines() if line.startswith("step ")]
    assert len(lines) == 6 and lines == [x for x in also.splitlines() if x.startswith("step ")]
    assert ours["model"].keys() == theirs["model"].keys()
    assert equal(ours["model"], theirs["model"])
    for number, name in enumerate(theirs["model"]):  # Adam's steps do not show a gradient's scale
        gradients = theirs["optimizer"]["state"][number]["exp_avg"]
        assert equal(ours["optimizer"][name]["exp_avg"], gradients)


@pytest.mark.parametrize(
    "where", ["sharded_tables.plan", pytest.param("data_service.start", marks=pytest.mark.slow)]
)
def test_a_rank_that_is_killed_in_its_start_ends_the_others(tmp_path: Path, where: str) -> None:
    port = str(free_port())
    command = [sys.executable, *job(tmp_path, "train_headway.py", "--steps", "2")]
    processes = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment(
                KILL=where, RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, -9], outputs
    assert "StageFailed: " in outputs[0]
    wait_until_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_job_whose_rank_is_killed_in_its_start_recovers(tmp_path: Path) -> None:
    headway = [sys.executable, "-m", "headway", "run", "-o", "run", "--restarts", "1", "--"]
    words = ("--steps", "2", "--save-every", "2", "--eval-every", "2", "--eval-batches", "2")
    done = subprocess.run(
        [*headway, *TORCHRUN, *job(tmp_path, "train_headway.py", *words)],
        cwd=tmp_path,
        env=environment(KILL="sharded_tables.plan", HEADWAY_STRICT="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    ledger = load(tmp_path / "run").ledger
    assert [one.outcome for one in ledger.attempts] == ["failed", "completed"]
    assert ledger.process_groups == ()  # the default group does for the evaluation
    assert newest(tmp_path / "saves")["step"] == 2
    wait_until_nothing_is_left(tmp_path)
