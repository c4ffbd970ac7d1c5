"""What runs learn for the next: by `--auto`, `--learn`, `headway autotune` and warm starts."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.compile.recompiles import learning
from headway.compile.recompiles.learning import StepTime
from headway.launch.warm.preload_plan import WarmState
from headway.session import registry
from headway.session.profile import Baseline, DisabledBooster, ProfileStore
from tests.golden.cases import command
from tests.golden.recorders import run as runs

JOB = """
import headway

for _ in range(30):
    headway.step()
"""


def _auto(files: Path) -> None:
    """Of a job that really ran, and of one that has everything in it."""
    Path("train.py").write_text(JOB)
    job = ["--auto", "--", sys.executable, "train.py"]
    assert command("run", *job)[0] == 0
    shutil.copytree("headway/.auto", files / "headway" / ".auto")
    for lock in (files / "headway" / ".auto").glob("*.lock"):
        lock.unlink()
    shelf = ProfileStore(files / "headway")
    measured = Baseline(
        compile_s=30.5, recompile_s=1.25, autotune_s=60.0, save_s=2.0, recover_s=90.0
    )
    off = DisabledBooster(
        why="saves blocked 9.0 s instead of 2.0 s", versions="headway 0.1.0, torch 2.13.0"
    )
    known: dict[str, Any] = {
        "words": ("train.py", "--config", "large"),
        "runs": 7,
        "last_run": "train-1116-101010",
        "off": {
            registry.ASYNC_SAVE: off,
            registry.PUBLISH: DisabledBooster(
                why="no factory", versions="headway 0.1.0", of="0" * 16
            ),
        },
        "measured": {
            "torch 2.13.0, NVIDIA H200, 8 rank(s)": measured,
            "torch 2.12.0, CPU, 1 rank(s)": Baseline(save_s=0.5),
        },
        "refused": 1,
        "silence_s": 12.5,
    }

    assert shelf.update("train-0a1b2c3d", lambda profile: replace(profile, **known))
    (files / "headway" / ".auto" / ".train-0a1b2c3d.lock").unlink()
    run = runs.write(runs.everything(), Path("everything"), "everything")
    target = str(shelf.autotune("train-0a1b2c3d"))
    assert command("autotune", str(run), "-o", target)[0] == 0


def _learn(files: Path) -> None:
    """By the recompiles of a run, and one that has everything in it."""
    run = runs.write(runs.everything(), Path("everything"), "everything")
    lesson = learning.RecompileLearner(files, "train", ["python", "train.py"], lambda text: None)
    lesson.end(run, 0)
    marked, plain = StepTime(ns=2_000_000, steps=90), StepTime(ns=1_000_000, steps=80)
    known = learning.LearnedSources(
        torch="2.13.0",
        env={"TORCH_COMPILE_DYNAMIC_SOURCES": "L['x']:0"},
        paces={"0" * 16: learning.StepTimes(plain, marked, "with them a step took longer")},
    )
    learning.write_learned(files / learning.LEARNED_FOLDER / "serve.json", "serve", known)


def _warm(files: Path) -> None:
    """By two launches of one run."""
    WarmState(left_out={"wandb": "it starts a thread"}, good=["torch"], seconds=4.5).write(files)
    WarmState(
        off="the job has changed its environment", good=["numpy"], seconds=5.5, cold=8.0
    ).write(files)


def _autotune(files: Path) -> None:
    """By `headway autotune`."""
    run = runs.write(runs.everything(), Path("everything"), "everything")
    assert command("autotune", str(run), "-o", str(files / "autotune.json"), "--loss", "60")[0] == 0


RECORDERS = {
    "auto": (_auto, "what --auto keeps of jobs", ()),
    "learn": (_learn, "what --learn keeps of jobs", ()),
    "warm": (_warm, "what warm restarts keep of a run", ()),
    "autotune": (_autotune, "the configs that are worth trying again", ()),
}
