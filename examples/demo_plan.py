"""The job of the demonstration, its faults, and the three ways in which it is run."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(os.path.relpath(Path(__file__).parent))
BIN = Path(os.path.relpath(Path(sys.executable).parent))
DLRM = EXAMPLES / "dlrm"
RANKS = 2
WAYS = ("plain", "auto", "headway")
HANG = "SIGSTOP"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all three ways train; see docs/demo.md for why it has these proportions."""

    steps: int = 840
    save_every: int = 20
    snapshot_every: int = 10  # in memory, by the Checkpointer,
    disk_every: int = 100  # which then needs the disk for the loss of the machine alone
    batch: int = 1024  # per rank
    rows: int = 10_000
    dim: int = 16
    warmup_s: float = 1.0  # of the data
    timeout_s: float = 150.0  # of the process group: what ends a hang without Headway
    backend: str = "none"

    @property
    def faults(self) -> list[dict[str, object]]:
        """Two kills and a hang in between, each halfway between two saves."""
        quarter = self.steps // 4 // self.save_every * self.save_every
        names = ("SIGKILL", HANG, "SIGKILL")
        return [
            {"step": (number + 1) * quarter + self.save_every // 2, "rank": 1, "signal": name}
            for number, name in enumerate(names)
        ]

    def check(self) -> None:
        """One sentence where no run could be made of it."""
        if self.steps % self.save_every:
            raise SystemExit(
                f"demo: --steps is {self.steps}; give a multiple of the steps between two saves, "
                f"{self.save_every}: the last save is what is compared"
            )
        if self.steps < 8 * self.save_every:
            raise SystemExit(
                f"demo: --steps is {self.steps}; give {8 * self.save_every} or more, "
                "so that every fault comes after a save of its own attempt"
            )


# More training between the faults, and the timeout that NCCL has by itself: a quarter of an hour.
LONG = Plan(steps=4000, timeout_s=600.0)


@dataclass(frozen=True)
class Way:
    """One of the three; its run folder and the others lie side by side."""

    name: str
    plan: Plan
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / self.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "work" / self.name / "checkpoints"

    @property
    def trained(self) -> Path:
        return self.folder / "work" / self.name / "trained"

    @property
    def hanging(self) -> Path:
        """Is there once the job hangs."""
        steps = (one["step"] for one in self.plan.faults if one["signal"] == HANG)
        return self.checkpoints / f"fault-{next(steps)}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def command(self, port: int | None) -> list[str]:
        """The whole line; `port` is that of the data service."""
        publish = ["--publish", DLRM / "publish_weights.toml"]
        publish += ["--publish-to", self.folder / "work" / self.name / "snapshots"]
        boosters = {
            "plain": ["--no-hang-watch"],
            "auto": ["--auto", *publish],
            "headway": ["--restarts", "5", "--warm", *publish],
        }[self.name]
        own = ["--max-restarts", "5"] if self.name == "plain" else []
        words = [
            *(BIN / "headway", "run", "-o", self.run, *boosters, "--"),
            *(BIN / "torchrun", "--standalone", "--nproc-per-node", RANKS, *own),
            *(DLRM / self.script, *self.arguments()),
        ]
        if port is not None:
            words += ["--data-service", port, "--snapshot-every", self.plan.snapshot_every]
        return [str(word) for word in words]

    @property
    def script(self) -> str:
        return "train_headway.py" if self.name == "headway" else "train.py"

    def arguments(self) -> list[object]:
        plan = self.plan
        words: list[object] = ["--deterministic", "--log-every", plan.steps // 4]
        save_every = plan.disk_every if self.name == "headway" else plan.save_every
        words += ["--steps", plan.steps, "--save-every", save_every, "--batch", plan.batch]
        words += ["--rows", plan.rows, "--dim", plan.dim]
        words += ["--no-compile"] if plan.backend == "none" else ["--backend", plan.backend]
        words += ["--data-warmup", plan.warmup_s, "--group-timeout", plan.timeout_s]
        words += ["--checkpoint-dir", self.checkpoints, "--trained", self.trained]
        words += ["--faults", self.folder / "faults.json"]
        return words + (["--no-export"] if self.name == "auto" else [])
