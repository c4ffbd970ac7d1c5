"""Real processes under `--async-save`: what waits, how they end, and what a kill leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.journal.reader import Journal, read_journals
from headway.probe import ENV_ASYNC
from tests.support import code_of, probe_env

HELD = """
import atexit, glob, os, pathlib, shutil, subprocess, sys, threading
import torch

class Disk:  # what is synced is held back until `free` is set
    free = threading.Event()
    error = None
    real = os.fsync

def fsync(handle):
    assert Disk.free.wait(60)
    if Disk.error:
        raise Disk.error
    Disk.real(handle)

os.fsync = fsync
"""


def script(folder: Path, text: str, name: str = "job.py") -> Path:
    path = folder / name
    path.write_text(HELD + text)
    return path


def env(folder: Path) -> dict[str, str]:
    journal = folder / "journal"
    journal.mkdir(exist_ok=True)
    return probe_env(journal, **{ENV_ASYNC: "1"})


def start(folder: Path, text: str, name: str = "job.py") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script(folder, text, name))],
        cwd=folder,
        env=env(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=100)
    return job.returncode, out, err


def journals(folder: Path) -> list[Journal]:
    found, problems = read_journals(str(folder / "journal"))
    assert not problems
    return found


def events(journals: list[Journal], name: str) -> list[dict[str, Any]]:
    return [event for journal in journals for event in journal.named(name)]


FORKS = """
import json, time
from headway.probe.recorder import recorder

recorder.suspend()
for line in sys.stdin:
    path, *sys.argv[1:] = json.loads(line)
    pid = os.fork()
    if not pid:
        recorder.reset_after_warm_fork(time.monotonic_ns())
        os.chdir(os.path.dirname(path))
        for stream, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(kind, os.O_WRONLY | os.O_CREAT), stream)
        exec(compile(pathlib.Path(path).read_text(), path, "exec"))
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass
class Forks:
    """Jobs that are forks of one process, which has torch and the probe already."""

    folder: Path
    process: subprocess.Popen[str]

    def run(self, folder: Path, text: str, *words: str) -> tuple[int, str, str, list[Journal]]:
        """A job in a folder: its exit code, its output, and its journals."""
        path = folder / "job.py"
        path.write_text(text)
        before = {journal.pid for journal in journals(self.folder)}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(path), *words]) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        fresh = [journal for journal in journals(self.folder) if journal.pid not in before]
        return code, (folder / "out").read_text(), (folder / "err").read_text(), fresh


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forks")
    process = subprocess.Popen(
        [sys.executable, str(script(folder, FORKS))],
        cwd=folder,
        env=env(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Forks(folder, process)
    process.communicate(timeout=30)
    assert process.returncode == 0


WAITING = """
from headway.checkpoint.async_save.background import write_queue

def held(number):
    Disk.free.clear()
    torch.save(torch.full((100,), number), "held/a.pt")
    assert write_queue.pending
    threading.Timer(0.05, Disk.free.set).start()

def content():
    with open("held/a.pt", "rb") as file:
        return file.read()

import pyarrow.fs
os.mkdir("held")
os.mkdir("held/sub")
os.mkdir("held3")
os.symlink("held", "link")
ways = {
    "load": lambda: torch.load("held/a.pt"),
    "mmap": lambda: torch.load("link/a.pt", mmap=True),
    "open": content,
    "os.open": lambda: os.close(os.open("held/a.pt", os.O_RDONLY)),
    "exists": lambda: os.path.exists("held/a.pt"),
    "Path.exists": lambda: pathlib.Path("link/a.pt").exists(),
    "access": lambda: os.access("held/a.pt", os.R_OK),
    "lstat": lambda: os.lstat(os.path.abspath("held/a.pt")),
    "listdir": lambda: os.listdir("held"),
    "scandir": lambda: list(os.scandir(b"held")),
    "glob": lambda: glob.glob("held/*.pt"),
    "iterdir": lambda: list(pathlib.Path("held").iterdir()),
    "chmod": lambda: os.chmod("held/a.pt", 0o600),
    "pointer": lambda: open("held/latest", "w").close(),
    "pointer above": lambda: pathlib.Path("latest").write_text("a.pt"),
    "remove": lambda: os.remove("latest"),
    "rename": lambda: os.rename("held/latest", "held/newest"),
    "rmtree": lambda: shutil.rmtree("held/sub"),
    "copy": lambda: shutil.copy("held/a.pt", "copy.pt"),
    "copytree": lambda: shutil.copytree("held", "held2", dirs_exist_ok=True),
    "pyarrow": lambda: pyarrow.fs.copy_files("held", "held3"),
    "symlink": lambda: os.symlink("a.pt", "held/last.pt"),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "system": lambda: os.system("true"),
    "plain save": lambda: torch.save(1, "/dev/null"),
}
for number, (name, way) in enumerate(ways.items()):
    held(number)
    way()
    assert Disk.free.is_set() and not write_queue.pending, name
    assert torch.load("held/a.pt")[0] == number, name

held(100)
pid = os.fork()  # nothing is in flight in the child, which saves for itself
if pid == 0:
    assert Disk.free.is_set() and not write_queue.pending
    torch.save(torch.full((100,), 101), "held/child.pt")
    sys.exit(int(torch.load("held/child.pt")[0] != 101))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

Disk.free.clear()  # what has nothing to do with it goes on
torch.save(torch.ones(3), "held/a.pt")
os.listdir("."), os.path.exists("held"), os.path.exists("held/b.pt"), os.listdir("held2")
open("held2/log", "w").close()
open("held/log", "a").close()
open("job.py").close()
assert write_queue.pending and not Disk.free.is_set()
torch.save(torch.zeros(3), "held/a.pt")
assert len(write_queue.pending) == 2
Disk.free.set()
assert torch.load("held/a.pt").tolist() == [0, 0, 0]
Disk.error = OSError(5, "Input/output error")
torch.save(1, "held/a.pt")
try:
    torch.load("held/a.pt")
except RuntimeError as error:
    assert error.code == "background-write-failed", error
    assert error.fields["path"] == os.path.abspath("held/a.pt")
    assert error.fields["error"].startswith("OSError: [Errno 5]"), error
else:
    raise AssertionError("the old file was taken for the new one")
torch.save(1, "held/a.pt")
for allowed in (False, True):  # what is old stays while the new one is not there; once
    try:
        os.remove("held/log")
        assert allowed
    except RuntimeError as error:
        assert not allowed and error.code == "background-write-failed", error
    assert os.path.exists("held/log") != allowed
Disk.error = None
try:
    torch.save(2, "held/b.pt")  # which was saved all the same
except RuntimeError as error:
    assert error.fields["path"] == os.path.abspath("held/a.pt"), error
else:
    raise AssertionError("the failure was lost")
assert torch.load("held/b.pt") == 2
assert torch.load("held/a.pt").tolist() == [0, 0, 0]
print("done")
"""


@pytest.mark.timeout(100)
def test_whatever_needs_the_file_waits_for_it(tmp_path: Path, forks: Forks) -> None:
    code, out, err, found = forks.run(tmp_path, WAITING)
    assert (code, out) == (0, "done\n"), err
    told = events(found, "behind")
    waits = {event["waited"] for event in told if "waited" in event}
    assert {"open", "stat", "os.listdir", "os.rename", "subprocess.Popen", "os.fork"} <= waits
    saves = [event for event in told if "bytes" in event]
    assert sum("error" in event for event in saves) == 2
    assert not list(tmp_path.rglob(".headway-save-*"))


ENDS = {  # how a process ends after a save, and its exit code
    "the last line": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise SystemError", 1),
    "os._exit": ("os._exit(0)", 0),
    "a handler": (
        "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); "
        "os.kill(os.getpid(), signal.SIGTERM)",
        4,
    ),
    "a full disk": ("atexit.register(print, 'others run too')", 1),
    "a full disk and os._exit": ("os._exit(0)", 1),
    "a file that may not grow": ("", 1),
}
ENDING = f"""
ends = {ENDS}
for name, (end, _) in ends.items():
    pid = os.fork()
    if pid == 0:
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{{name}}.{{kind}}", os.O_WRONLY | os.O_CREAT), number)
        if "full" in name:
            Disk.error = OSError(28, "No space left on device")
        if "grow" in name:  # torch's own writer meets it
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        torch.save(torch.full((100_000,), 5), f"{{name}}.pt")
        threading.Timer(0.05, Disk.free.set).start()
        exec(end)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.timeout(100)
def test_the_end_of_the_process_waits_and_tells_of_a_failure(tmp_path: Path, forks: Forks) -> None:
    code, out, err, _ = forks.run(tmp_path, ENDING)
    assert code == 0, err
    assert list(map(int, out.split())) == [code for _, code in ENDS.values()]
    for name in ENDS:
        lines = (tmp_path / f"{name}.err").read_text().splitlines()
        told = [line for line in lines if code_of(line) == "background-write-failed"]
        fails = "full" in name or "grow" in name
        assert (tmp_path / f"{name}.pt").exists() != fails
        assert len(told) == fails, lines
        assert all(f"{tmp_path}/{name}.pt" in line for line in told), lines
        assert any("OSError: [Errno 28]" in line for line in told) == ("full" in name), lines
    assert "others run too" in (tmp_path / "a full disk.out").read_text()
    assert not list(tmp_path.glob(".headway-save-*"))


KILLED = """
import random, signal, time

def train(seed):  # saves one state after the other to one path, until it is killed
    torch.set_num_threads(1)
    number = 0
    while True:
        number += 1
        torch.save({"n": number, "t": torch.full((200_000,), number)}, f"{seed}.pt")
        time.sleep(0.001)

Disk.free.set()
left = 0
for seed in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        train(seed)
    while not os.path.exists(f"{seed}.pt"):
        time.sleep(0.002)
    time.sleep(random.Random(seed).uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    left += bool(glob.glob(".headway-save-*"))
    found = torch.load(f"{seed}.pt", weights_only=True)
    assert found["n"] >= 1 and (found["t"] == found["n"]).all(), seed
torch.save(1, "next.pt")
os.listdir(".")
assert not glob.glob(".headway-save-*")
print("killed in mid-write:", left)
"""


def kills(forks: Forks, folder: Path, number: int) -> int:
    code, out, err, _ = forks.run(folder, KILLED, str(number))
    assert code == 0, err
    return int(out.rpartition(":")[2])


@pytest.mark.timeout(100)
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path, forks: Forks) -> None:
    kills(forks, tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_many_kills_leave_the_old_file_or_the_new_one(tmp_path: Path, forks: Forks) -> None:
    assert kills(forks, tmp_path, 20) > 0


RANKS = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from headway.checkpoint.async_save.background import write_queue

if "RANK" not in os.environ:  # the ranks are forked, as torchrun takes its time
    child = os.fork()
    store = f"file://{os.getcwd()}/store"
    dist.init_process_group("gloo", init_method=store, rank=int(not child), world_size=2)
else:
    child = 0
    dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
local = torch.full((3, 4), float(rank))
state = {"table": DTensor.from_local(local, mesh, [Shard(0)]), "own": torch.ones(2), "step": 1}

Disk.free.clear()
dcp.save(state, checkpoint_id="first")
os.mkdir(str(rank))
os.chdir(str(rank))
local.fill_(-1)
state["own"].fill_(-1)
import fresh  # the writer may wait for an import's lock, so that no import waits for the writer
assert write_queue.pending
threading.Timer(0.05, Disk.free.set).start()
into = {"table": DTensor.from_local(torch.zeros(3, 4), mesh, [Shard(0)]), "own": torch.zeros(2)}
dcp.load(into, checkpoint_id="../first")
os.chdir("..")
assert torch.equal(into["table"].to_local(), torch.full((3, 4), float(rank)))
assert into["own"].tolist() == [1, 1]

if rank == 1:
    state["odd"] = object  # what one rank cannot copy, none writes behind
dcp.save(state, checkpoint_id="second")
assert not write_queue.pending and os.path.exists("second/.metadata")

Disk.free.clear()
if rank == 0:
    torch.save(torch.ones(3), "shared.pt")
    threading.Timer(0.05, Disk.free.set).start()
else:
    Disk.free.set()
dist.barrier()
assert torch.load("shared.pt").tolist() == [1, 1, 1]

local.fill_(9)
dcp.save({"table": state["table"]}, checkpoint_id="third")
dist.destroy_process_group()
assert os.path.exists("third/.metadata")
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
pathlib.Path(f"done-{rank}").touch()
os._exit(0)
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def checked(folder: Path, told: list[dict[str, Any]]) -> None:
    assert (folder / "done-0").exists() and (folder / "done-1").exists()
    plain = [event for event in told if "why" in event]
    assert {event["code"] for event in plain} == {"type-not-supported"}
    assert all("rank 1" in event["why"] and "builtins.type" in event["why"] for event in plain)
    assert sum("bytes" in event and "error" not in event for event in told) == 5


@pytest.mark.timeout(100)
def test_two_ranks_save_behind_together_or_not_at_all(tmp_path: Path, forks: Forks) -> None:
    (tmp_path / "fresh.py").touch()
    text = "sys.path.insert(0, os.getcwd())\n" + RANKS
    code, _, err, found = forks.run(tmp_path, text)
    assert code == 0, err
    checked(tmp_path, events(found, "behind"))


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_two_ranks_of_torchrun_do_so(tmp_path: Path) -> None:
    (tmp_path / "fresh.py").touch()
    done = subprocess.run(
        [sys.executable, *TORCHRUN, str(script(tmp_path, RANKS))],
        cwd=tmp_path,
        env=env(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    checked(tmp_path, events(journals(tmp_path), "behind"))


JOB = """
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
Disk.free.set()
for step in range(6):
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    if step % 2:
        torch.save(model.state_dict(), "a.pt")
with open("b.pt", "wb") as file:
    torch.save(1, file)
"""


@pytest.mark.timeout(100)
def test_headway_run_says_what_was_written_behind(tmp_path: Path) -> None:
    path = script(tmp_path, JOB)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY")}
    run = [sys.executable, "-m", "headway", "run", "--async-save", "-o", "run", "--no-report"]
    done = subprocess.run(
        [*run, "--", sys.executable, str(path)],
        cwd=tmp_path,
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    behind = ledger["checkpoints"]["behind"]
    assert (behind["saves"], behind["failed"]) == (3, 0)
    assert list(behind["plain"].values()) == [1]
    found, problems = read_journals(str(tmp_path / "run" / "journal"))
    plain = [event["code"] for event in events(found, "behind") if "why" in event]
    assert plain == ["open-file"] and not problems
    assert behind["blocked_s"] > 0 and behind["written_s"] > 0
    assert ledger["checkpoints"]["saves"] == 3  # both files of the last step are one
    assert not ledger["notes"]
    assert "Asynchronous saves" not in done.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    (why,) = behind["plain"]
    assert why in page


LIGHTNING = """
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

def trainer(steps):
    save = pl.callbacks.ModelCheckpoint(".", "{step}", every_n_train_steps=2, save_top_k=-1)
    return pl.Trainer(
        max_steps=steps, callbacks=[save], accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )

Disk.free.set()
data = DataLoader(TensorDataset(torch.ones(30, 4)))
model = Model()
trainer(6).fit(model, data)
assert sorted(glob.glob("*.ckpt")) == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]
found = torch.load("step=6.ckpt", weights_only=True)
assert found["global_step"] == 6
assert torch.equal(found["state_dict"]["layer.weight"], model.layer.weight)
trainer(8).fit(Model(), data, ckpt_path="step=6.ckpt")
assert torch.load("step=8.ckpt", weights_only=True)["global_step"] == 8
"""
MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": out.sum(), "logits": out}
"""
TRANSFORMERS = (
    MODEL
    + """
from transformers import Trainer, TrainingArguments

def trainer(steps):
    told = TrainingArguments(
        "out", max_steps=steps, per_device_train_batch_size=1, save_strategy="steps", save_steps=2,
        save_total_limit=2, report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=1000,
    )
    rows = [{"x": torch.ones(4), "labels": torch.ones(1)}] * 30
    return Trainer(Model(), told, train_dataset=rows)

Disk.free.set()
trainer(6).train()
assert sorted(os.listdir("out")) == ["checkpoint-4", "checkpoint-6"]
again = trainer(8)
again.train(resume_from_checkpoint="out/checkpoint-6")
assert again.state.global_step == 8
found = torch.load("out/checkpoint-8/optimizer.pt", weights_only=True)
assert found["state"][0]["step"] == 8
"""
)

PIECES = (
    MODEL
    + """
import signal
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 2:
            os.listdir("out/checkpoint-2")  # which waits for it
            Disk.free.clear()
        elif state.global_step == 4:  # its checkpoint is not written yet
            assert os.path.exists("out/checkpoint-4/model.safetensors")
            os.kill(os.getpid(), signal.SIGKILL)

last = get_last_checkpoint("out") if os.path.isdir("out") else None
Disk.free.set()
told = TrainingArguments(
    "out", max_steps=6, per_device_train_batch_size=1, save_steps=2, report_to=[],
    disable_tqdm=True, use_cpu=True, logging_steps=1000,
)
rows = [{"x": torch.ones(4), "labels": torch.ones(1)}] * 30
trainer = Trainer(Model(), told, train_dataset=rows, callbacks=[] if last else [Kill()])
trainer.train(resume_from_checkpoint=last)
print("resumed from", last)
found = torch.load("out/checkpoint-6/optimizer.pt", weights_only=True)
assert found["state"][0]["step"] == 6
"""
)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_checkpoint_that_a_kill_left_in_pieces_is_passed_over(tmp_path: Path) -> None:
    """Its model is there and its optimizer is not: transformers would go on with a new one."""
    pytest.importorskip("transformers")
    code, _, err = ended(start(tmp_path, PIECES))
    assert code == -9, err
    pieces = {path.name for path in (tmp_path / "out" / "checkpoint-4").iterdir()}
    assert "model.safetensors" in pieces
    assert not pieces & {"optimizer.pt", "trainer_state.json"}
    code, out, err = ended(start(tmp_path, PIECES))
    assert code == 0, err
    assert "resumed from out/checkpoint-2" in out
    whole = {path.name for path in (tmp_path / "out" / "checkpoint-4").iterdir()}
    assert {"optimizer.pt", "trainer_state.json"} <= whole
    assert not list(tmp_path.rglob(".headway-save-*"))


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("package", "job"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_trainers_save_behind_and_resume(tmp_path: Path, package: str, job: str) -> None:
    pytest.importorskip(package)
    code, _, err = ended(start(tmp_path, job))
    assert code == 0, err
    told = events(journals(tmp_path), "behind")
    written = [event["path"] for event in told if "bytes" in event]
    assert len(written) >= 4 and not [event for event in told if "why" in event]
    assert not list(tmp_path.rglob(".headway-save-*"))
