"""Programs that know nothing of Headway: run plainly, and under `--auto` with outside kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.launch.rank_tail import RankTail
from headway.session.auto import NO_RECIPE, NOT_RECORDED_YET
from tests.processes import working_in

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LOOK_S = 0.02  # between two looks at the job


def slow(*packages: str, limit_s: float) -> list[pytest.MarkDecorator]:
    """The marks of a test that needs those; nothing is imported to know whether they are there."""
    marks = [pytest.mark.slow, pytest.mark.timeout(limit_s)]
    for name in packages:
        why = f"{name}: make test-programs"
        marks.append(pytest.mark.skipif(find_spec(name) is None, reason=why))
    return marks


@dataclass(frozen=True)
class Kill:
    """SIGKILL for a rank that has made so many steps in its life, between two checkpoints."""

    rank: int
    steps: int
    every: int  # steps from one checkpoint to the next

    def due(self, steps: int) -> bool:
        """In the middle: the last checkpoint is written, and the next one not begun."""
        return steps >= self.steps and self.every * 0.4 <= steps % self.every <= self.every * 0.7


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what it and its launcher said."""

    code: int
    output: str
    folder: Path
    ledger: dict[str, Any]
    killed: list[int]  # ranks, in the order of the kills

    @property
    def boosters(self) -> dict[str, dict[str, Any]]:
        return {booster["name"]: booster for booster in self.ledger["auto"]["boosters"]}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of all journals."""
        lines = (
            line
            for path in sorted((self.folder / "journal").glob("*.jsonl"))
            for line in path.read_text().splitlines()
            if line.startswith(f'{{"ev":"{kind}"')
        )
        return [json.loads(line) for line in lines]


@dataclass
class Killer(threading.Thread):
    """Watches the journals of a run, and kills by plan: one rank of each attempt."""

    journal: Path
    plan: list[Kill]
    killed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self._seen: dict[Path, RankTail] = {}
        self._dead: set[str] = set()  # attempts that had their kill

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while self.plan and not self.over.wait(LOOK_S):
            for process in self._look():
                if self._due(process, self.plan[0]):
                    self._dead.add(_life(process))
                    os.kill(process.pid, signal.SIGKILL)
                    self.killed.append(self.plan.pop(0).rank)
                    break
        for process in self._seen.values():
            process.close()

    def _look(self) -> Iterable[RankTail]:
        for path in self.journal.glob("*.jsonl"):
            self._seen.setdefault(path, RankTail(str(path), 0))
        for process in self._seen.values():
            process.read_new()
            process.pid = int(process.head.get("pid") or 0)
        return list(self._seen.values())

    def _due(self, process: RankTail, kill: Kill) -> bool:
        if process.rank != kill.rank or process.helper or _life(process) in self._dead:
            return False
        return kill.due(process.pulse().steps) and os.path.exists(f"/proc/{process.pid}")


def _life(process: RankTail) -> str:
    return f"{process.head.get('launch')} {process.restart}"


class Bench:
    """A folder that a program works in, and the runs of it."""

    def __init__(self, root: Path, command: Sequence[str], leaves: Sequence[str]) -> None:
        self.root, self.command = root, list(command)
        self.leaves = leaves  # what a run writes into the folder
        self.number = 0
        self.values: dict[str, dict[str, float]] = {}  # figures that the next run begins with
        root.mkdir(exist_ok=True)

    def plainly(self, timeout: float = 200, *, resumes: bool = False) -> str:
        """Without Headway, and without a kill; what it said. `resumes`: from what is there."""
        if not resumes:
            self.clear()
        done = subprocess.run(self.command, timeout=timeout, **self._how())
        assert done.returncode == 0, done.stdout[-4000:]
        return str(done.stdout)

    def auto(self, *kills: Kill, timeout: float = 300, flags: Sequence[str] = ()) -> Ended:
        """`headway run --auto`, and a killer beside it."""
        self.clear()
        self.number += 1
        folder = self.root / "runs" / str(self.number)
        killer = Killer(folder / "journal", list(kills))
        killer.start()
        headway = [str(BIN / "headway"), "run", "--auto", *flags, "-o", f"runs/{self.number}"]
        try:
            done = subprocess.run([*headway, "--", *self.command], timeout=timeout, **self._how())
        finally:
            killer.over.set()
            killer.join()
        ledger = json.loads((folder / "ledger.json").read_text())
        return Ended(done.returncode, str(done.stdout), folder, ledger, killer.killed)

    def clear(self) -> None:
        """The next run begins anew."""
        for name in self.leaves:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def show(self, *words: str) -> str:
        """`headway auto show`."""
        done = subprocess.run(
            [str(BIN / "headway"), "auto", "show", *words, "--runs", "runs"],
            timeout=60,
            **self._how(),
        )
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    def _how(self) -> dict[str, Any]:
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])  # as in an activated environment
        return {
            "cwd": self.root,
            "env": {**os.environ, **quiet, "PATH": path, "HEADWAY_STRICT": ""},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }


def left_over(folder: Path, within_s: float = 10.0) -> list[str]:
    """Processes that still work in that folder; those that are about to end are waited for."""
    until = time.monotonic() + within_s
    while (pids := working_in(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return pids


def same(left: Any, right: Any) -> bool:
    """Bit for bit."""
    import torch

    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def well(
    bench: Bench,
    done: Ended,
    *,
    kills: list[int],
    steps: int,
    every: int,
    late: int = 0,
    told: bool = True,
) -> None:
    """A good end; each kill is in the ledger, each attempt goes on from the newest checkpoint.

    `late`: how many of the last ones the program may not know of yet; `told`: the launcher can see
    how a rank has ended.
    """
    assert done.code == 0, done.output[-6000:]
    assert done.killed == kills, done.output[-6000:]
    attempts, failures = done.ledger["attempts"], done.ledger["failures"]
    assert [one["outcome"] for one in attempts] == ["failed"] * len(kills) + ["completed"]
    assert len(failures) == len(kills)
    for rank, one in zip(kills, failures, strict=True):
        seen = one["root_rank"] == rank and "SIGKILL" in one["evidence"]
        assert seen or (not told and one["root_rank"] is None), failures
    assert len(done.ledger["time_to_recover_s"]) == len(kills)
    for before, after in pairwise(attempts):
        behind, rest = divmod(before["last_step"] // every * every - after["resumed_from"], every)
        assert after["resumed_from"] > 0 and 0 <= behind <= late and not rest, attempts
        assert after["first_step"] == after["resumed_from"] + 1
    assert done.ledger["steps"] == attempts[-1]["last_step"] == steps
    assert abs(sum(done.ledger["buckets"].values()) - done.ledger["wall_s"]) < 1e-3
    assert not [note for note in done.ledger["notes"] if "hook-off" in note]
    profited(bench, done, kills=len(kills))
    assert not left_over(bench.root)


def profited(bench: Bench, done: Ended, *, kills: int) -> None:
    """No booster was taken back, and the job has a profile that its next run begins with."""
    off = {name: one["why"] for name, one in done.boosters.items() if one["state"] == "off"}
    assert off == {"autotune": NOT_RECORDED_YET, "publish": NO_RECIPE}
    assert done.boosters["restarts"]["what"] == f"{kills} restart(s)"
    job = done.ledger["auto"]["job"]
    assert job in bench.show()
    profile = json.loads(bench.show(job, "--json"))
    assert (profile["runs"], profile["off"]) == (bench.number, {})
    assert done.events("auto")[0]["known"] == bench.values
    bench.values = {
        kind: {name: value for name, value in one.items() if value is not None}
        for kind, one in profile["measured"].items()
    }
    assert bench.values
