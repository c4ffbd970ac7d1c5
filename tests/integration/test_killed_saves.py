"""A framework's save that is killed at any of its operations leaves an older checkpoint, whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import HEADWAY, TESTS, codes, probe_env

# What the frameworks do to files when they save and resume, as their own code does it. The names of
# the modules are theirs, so that the hooks are those that a job has.
FRAMEWORKS = {
    "transformers/__init__.py": "",
    "transformers/trainer_callback.py": """
import json

class TrainerState:
    global_step = 0

    def save_to_json(self, json_path):
        with open(json_path, "w", encoding="utf-8") as file:
            file.write(json.dumps({"global_step": self.global_step}))
""",
    "transformers/trainer_utils.py": """
import os, re, shutil
from pathlib import Path

PREFIX_CHECKPOINT_DIR = "checkpoint"
NAME = re.compile(r"^checkpoint-([0-9]+)$")

def get_last_checkpoint(folder):
    found = [name for name in os.listdir(folder) if NAME.search(name)]
    if not found:
        return None
    return os.path.join(folder, max(found, key=lambda name: int(NAME.search(name).group(1))))

def sort_checkpoints(output_dir):
    found = [str(path) for path in Path(output_dir).glob("checkpoint-*") if os.path.isdir(path)]
    return sorted(found, key=lambda path: int(path.rpartition("-")[2]))

def rotate_checkpoints(output_dir, save_total_limit):
    for path in sort_checkpoints(output_dir)[:-save_total_limit]:
        shutil.rmtree(path, ignore_errors=True)
""",
    "transformers/trainer.py": """
import os
from types import SimpleNamespace
import torch
from tests.kills import write_in_two_parts
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

class Trainer:
    def __init__(self):
        self.state, self.args = TrainerState(), SimpleNamespace(output_dir="out")

    def _get_output_dir(self, trial):
        return "out"

    def _save_checkpoint(self, model, trial):
        run = self._get_output_dir(trial=trial)
        folder = os.path.join(run, f"checkpoint-{self.state.global_step}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as file:
            file.write("{}")
        name = os.path.join(folder, "model.safetensors")
        write_in_two_parts(name, f"{self.state.global_step} whole")
        for name in ("training_args.bin", "optimizer.pt", "scheduler.pt"):
            torch.save(torch.full((9,), self.state.global_step), os.path.join(folder, name))
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, "rng_state.pth")
        torch.save(torch.full((9,), self.state.global_step), name)
        self.state.save_to_json(os.path.join(folder, "trainer_state.json"))
        rotate_checkpoints(run, 1)
""",
    "accelerate/__init__.py": "",
    "accelerate/accelerator.py": """
import os, shutil
from types import SimpleNamespace
import torch
from tests.kills import write_in_two_parts

class Accelerator:
    project_dir = "out"
    save_iteration = 0

    def __init__(self):
        self.project_configuration = SimpleNamespace(automatic_checkpoint_naming=True)

    def save_state(self, output_dir=None):
        output_dir = os.path.join(self.project_dir, "checkpoints")
        os.makedirs(output_dir, exist_ok=True)
        folders = sorted(os.path.join(output_dir, name) for name in os.listdir(output_dir))
        for folder in folders[: max(0, len(folders) + 1 - 2)]:
            shutil.rmtree(folder)
        folder = os.path.join(output_dir, f"checkpoint_{self.save_iteration}")
        if os.path.exists(folder):
            raise ValueError(folder)
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, "model.safetensors")
        write_in_two_parts(name, f"{self.save_iteration} whole")
        for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
            torch.save(torch.full((9,), self.save_iteration), os.path.join(folder, name))
        self.save_iteration += 1
""",
    "lightning/__init__.py": "",
    "lightning/fabric/__init__.py": "",
    "lightning/fabric/utilities/__init__.py": "",
    "lightning/fabric/utilities/cloud_io.py": """
import torch

def _atomic_save(checkpoint, filepath):
    raise AssertionError("its own way is not needed")
""",
    "lightning/pytorch/__init__.py": "",
    "lightning/pytorch/trainer/__init__.py": "",
    "lightning/pytorch/trainer/trainer.py": """
import os, shutil
import torch
import torch.distributed.checkpoint as dcp
from lightning.fabric.utilities.cloud_io import _atomic_save

class Trainer:
    global_step = 0

    def save_checkpoint(self, filepath, weights_only=False):
        state = torch.full((9,), self.global_step)
        if filepath.endswith(".ckpt"):
            os.makedirs(os.path.dirname(filepath), exist_ok=True)
            return _atomic_save({"state": state}, filepath)
        os.makedirs(filepath, exist_ok=True)  # a strategy that shards
        dcp.save({"state": state}, checkpoint_id=filepath, no_dist=True)
        torch.save({"step": self.global_step}, os.path.join(filepath, "meta.pt"))

    def remove_checkpoint(self, filepath):
        shutil.rmtree(filepath) if os.path.isdir(filepath) else os.remove(filepath)
""",
}

DRIVER = """
import glob, importlib, os, pathlib, re, sys
sys.path[:0] = [os.getcwd(), sys.argv[2]]
import torch
import torch.distributed.checkpoint as dcp
from tests.kills import sweep

torch.set_num_threads(1)
name = sys.argv[1]
TENSORS = {"transformers": 4, "accelerate": 3}

if name == "transformers":
    trainer = importlib.import_module("transformers.trainer").Trainer()
    utils = importlib.import_module("transformers.trainer_utils")

    def save(step):
        trainer.state.global_step = step
        trainer._save_checkpoint(None, None)

    def resume():
        newest = utils.get_last_checkpoint("out")
        listed = sorted(glob.glob("out/checkpoint-*"))[-1]  # as a job script may look for it
        assert newest == listed, (newest, listed)
        return newest

elif name == "accelerate":
    accelerator = importlib.import_module("accelerate.accelerator").Accelerator()

    def save(step):
        accelerator.save_iteration = step
        accelerator.save_state()

    def resume():
        names = os.listdir("out/checkpoints")
        return "out/checkpoints/" + max(names, key=lambda name: int(name.split("_")[1]))

else:
    trainer = importlib.import_module("lightning.pytorch.trainer.trainer").Trainer()
    suffix = ".ckpt" if name == "lightning" else ""

    def save(step):
        trainer.global_step = step
        trainer.save_checkpoint(f"out/step={step}{suffix}")
        old = f"out/step={step - 2}{suffix}"
        if os.path.exists(old):
            trainer.remove_checkpoint(old)

    def resume():
        return max(glob.glob("out/*"), key=lambda path: int(re.search(r"step=(\\d+)", path)[1]))

def step_of(path):
    if name == "lightning":
        return int(torch.load(path)["state"][0])
    if name == "lightning sharded":
        into = {"state": torch.zeros(9, dtype=torch.int64)}
        dcp.load(into, checkpoint_id=path, no_dist=True)
        assert torch.load(path + "/meta.pt")["step"] == into["state"][0]
        return int(into["state"][0])
    number, word = pathlib.Path(path, "model.safetensors").read_text().split()
    assert word == "whole", path
    suffixes = (".bin", ".pt", ".pth", ".pkl")
    tensors = [one for one in pathlib.Path(path).iterdir() if one.suffix in suffixes]
    assert len(tensors) == TENSORS[name], tensors
    for tensor in tensors:
        assert (torch.load(tensor) == int(number)).all(), tensor
    if name == "transformers":
        state = pathlib.Path(path, "trainer_state.json").read_text()
        assert state == '{"global_step": %s}' % number, state
    return int(number)

print("kills", sweep(save, resume, step_of))
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "name",
    [
        "transformers",
        "lightning",
        pytest.param("accelerate", marks=pytest.mark.slow),
        pytest.param("lightning sharded", marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_operation_leaves_a_whole_checkpoint(tmp_path: Path, name: str) -> None:
    for path, text in {**FRAMEWORKS, "driver.py": DRIVER}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "journal").mkdir()
    done = subprocess.run(
        [sys.executable, "driver.py", name, str(TESTS.parent)],
        cwd=tmp_path,
        env=probe_env(tmp_path / "journal", HEADWAY_PROBE_ASYNC_SAVE="1"),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 5


JOB = """
from headway.probe import unfinished_saves
import os, signal, sys
os.makedirs("out", exist_ok=True)
print(sorted(os.listdir("out")), flush=True)
if len(os.listdir("out")) < 2:
    open("out/log", "w").close()
    for name in ("checkpoint-1", "checkpoint-2"):
        save = unfinished_saves.begin_save(os.path.abspath(f"out/{name}"), existed=False)
        os.mkdir(f"out/{name}")
        open(f"out/{name}/config.json", "w").close()
        if name == "checkpoint-1":
            save.finish()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("runs", [["run"], ["run", "run-2"]])
def test_the_launcher_removes_what_a_kill_left_before_anything_looks_for_it(
    tmp_path: Path, runs: list[str]
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    restarts = ("--restarts", "1") if len(runs) == 1 else ()
    output, codes_ = [], []
    for run in runs:
        headway = [HEADWAY, "run", *restarts, "--no-report", "-o", f"runs/{run}", "--"]
        done = subprocess.run(
            [*headway, sys.executable, "job.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
        output += [line for line in done.stdout.splitlines() if line.startswith("[")]
        codes_ += codes(done.stderr)
    assert done.returncode == 0, done.stderr
    assert output == ["[]", "['checkpoint-1', 'log']"]
    assert codes_.count("unfinished-checkpoint-removed") == 1
