"""Take the advice of `headway advise`, run the same job again, and compare the gain with the word.

python benchmarks/advise.py [--only data_workers] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep import keep, machine

from headway.run import load

HEADWAY = [sys.executable, "-m", "headway"]
JOB = """
import argparse, os, time, torch
told = argparse.ArgumentParser()
told.add_argument("--steps", type=int, default=120)
told.add_argument("--step-ms", type=float, default=20)
told.add_argument("--sample-ms", type=float, default=0)
told.add_argument("--workers", type=int, default=0)
told.add_argument("--save-every", type=int, default=0)
told.add_argument("--save-mb", type=int, default=0)
told.add_argument("--compile", action="store_true")
told.add_argument("--sizes", type=int, default=1)
args = told.parse_args()
torch.set_num_threads(1)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(args.sample_ms / 1000)
        return torch.full((64,), float(index % 7))


net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
extra = torch.ones(args.save_mb * 250_000)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)


def loss(x, *others):
    return net(x).tanh().sum() + sum((other.sin() * k).sum() for k, other in enumerate(others, 2))


forward = torch.compile(loss) if args.compile else loss
done = 0
if os.path.exists("last.pt"):
    done = torch.load("last.pt")["step"]
loader = torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=args.workers)
for step, batch in enumerate(loader, done + 1):
    # One more of the inputs has another size after each tenth step.
    others = [torch.ones(8 + (step > 10 * k) * step % 5) for k in range(1, args.sizes)]
    forward(batch, *others).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(args.step_ms / 1000)
    if args.save_every and step % args.save_every == 0:
        torch.save({"step": step, "net": net.state_dict(), "extra": extra}, "last.pt")
    if step >= args.steps:
        break
"""


@dataclass(frozen=True)
class Case:
    """A job that has something to win, and how its advice is taken."""

    rule: str
    words: Sequence[str]  # of the job
    leaves: Sequence[str]  # in which the gain must show
    taken: Callable[[dict[str, Any]], tuple[list[str], list[str]]]  # as flags and words
    flags: Sequence[str] = ()  # of `headway run`, in all runs
    fill: bool = False  # a first run with the flag learns or fills a store, the next one gains


def by_flag(advice: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The flags of the command that was advised."""
    words = advice["command"].split(" -- ")[0].split()[2:]
    return words, []


def by_workers(advice: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The line of code, as an argument of this job."""
    number = re.search(r"num_workers=(\d+)", advice["code"][0])
    assert number is not None
    return [], ["--workers", number[1]]


CASES = (
    Case("data_workers", ["--sample-ms", "5"], ["waste.data_stall"], taken=by_workers),
    Case(
        "async_checkpoint",
        ["--steps", "240", "--save-every", "60", "--save-mb", "256"],
        # What waits for a file that is not there yet counts against it, also at the end.
        ["waste.checkpoint_block", "waste.blocked", "stop.shutdown"],
        taken=by_flag,
    ),
    Case("compile_cache", ["--compile"], ["start.pt2_compile"], taken=by_flag, fill=True),
    Case(
        "dynamic_sources",
        ["--compile", "--sizes", "4"],
        ["waste.recompile"],
        taken=by_flag,
        fill=True,
    ),
    Case(
        "restart_warmth",
        ["--steps", "800", "--save-every", "100"],
        ["recover.launcher_init"],
        flags=["--restarts", "5", "--chaos", "kill rank=0 step=750"],
        taken=by_flag,
    ),
)


def record(folder: Path, name: str, case: Case, flags: Sequence[str], words: Sequence[str]) -> Path:
    """One run, with nothing compiled and nothing saved before it."""
    (folder / "last.pt").unlink(missing_ok=True)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{name}")}
    command = [*HEADWAY, "run", "-o", name, "--no-report", *case.flags, *flags, "--"]
    job = [sys.executable, "job.py", *case.words, *words]
    subprocess.run([*command, *job], cwd=folder, env=env, check=True, stderr=subprocess.PIPE)
    return folder / name


def advised(path: Path, rule: str) -> dict[str, Any]:
    """What `headway advise` says about one rule."""
    told = subprocess.run(
        [*HEADWAY, "advise", str(path), "--json"], check=True, capture_output=True, text=True
    )
    rows = json.loads(told.stdout)["advice"]
    found: dict[str, Any] = next(row for row in rows if row["rule"] == rule)
    return found


def measure(folder: Path, case: Case) -> dict[str, Any]:
    """Before, what is promised, and after."""
    (folder / "job.py").write_text(JOB)
    before = record(folder, "before", case, [], [])
    advice = advised(before, case.rule)
    flags, words = case.taken(advice)
    if case.fill:
        record(folder, "fill", case, flags, words)
    after = record(folder, "after", case, flags, words)
    ledgers = load(before).ledger, load(after).ledger
    there, here = (sum(one.buckets.get(leaf, 0) for leaf in case.leaves) for one in ledgers)
    return {
        "promised_s": advice["seconds"],
        "confidence": advice["confidence"],
        "before_s": there / 1e9,
        "after_s": here / 1e9,
        "measured_s": (there - here) / 1e9,
        "ett_before": ledgers[0].ett_percent,
        "ett_after": ledgers[1].ett_percent,
        "taken": " ".join([*flags, *words]),
    }


def main() -> None:
    """Each case in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose rule has this in its name")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    args = parser.parse_args()
    rows = {}
    for case in CASES:
        if args.only not in case.rule:
            continue
        with tempfile.TemporaryDirectory() as name:
            rows[case.rule] = row = measure(Path(name), case)
        told = f"{case.rule} ({row['taken']}): promised {row['promised_s']:.2f} s "
        told += f"({row['confidence']}), measured {row['measured_s']:.2f} s of "
        told += f"{row['before_s']:.2f} s; ETT {row['ett_before']:.1f} -> {row['ett_after']:.1f}"
        print(told, flush=True)
    if args.keep:
        import torch

        versions = {"python": platform.python_version(), "torch": torch.__version__}
        keep("advise", {"machine": machine(), **versions, "rows": rows})


if __name__ == "__main__":
    main()
