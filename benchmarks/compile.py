"""How long a job waits for its compiler: cold, with torch's own caches, and with Headway's.

    python benchmarks/compile.py [--device cuda] [--models dlrm,transformer] [--repeat 2]

Each row is a fresh process in an empty container, as far as compiling goes: its own empty TMPDIR
and cache folders (but for torch's own warm cache, which is the same folder again). Seconds from the
start of the command to the end of the first step; of that from the model being built to the end
of the first step (ready), and of that inside torch.compile and its compiles (compile), without what
they import. Losses of five steps must be the same in all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from keep import keep, machine

JOB = Path(__file__).parent / "jobs" / "compiled.py"
ROOT = Path(__file__).parents[1]
FOLDER = "TORCHINDUCTOR_CACHE_DIR"


class Bench:
    """Runs one model in every way."""

    def __init__(self, model: str, device: str, root: Path) -> None:
        self.words = [sys.executable, str(JOB), model, "--device", device]
        self.root = root
        self.count = 0

    @contextmanager
    def container(self) -> Iterator[dict[str, str]]:
        """Nothing is there that an earlier process has left."""
        self.count += 1
        here = self.root / f"c{self.count}"
        (here / "tmp").mkdir(parents=True)
        unset = {FOLDER, "TRITON_CACHE_DIR"}
        env = {key: value for key, value in os.environ.items() if key not in unset}
        env |= {"TMPDIR": str(here / "tmp"), "HOME": str(here), "REPORT": str(here / "report")}
        env["PYTHONPATH"] = str(ROOT / "src")
        env["TRITON_HOME"] = str(here)
        # Packages have their bytecode, as pip leaves it; an image that was made without it, and
        # cannot be written to, makes every import twice as slow, and the first compile with them.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env["PYTHONPYCACHEPREFIX"] = str(self.root / "bytecode")
        yield env
        shutil.rmtree(here)

    def run(self, command: Sequence[str], env: dict[str, str], expected: int = 0) -> dict[str, Any]:
        """One process, or the last life of several."""
        begun = time.monotonic()
        done = subprocess.run(
            command, env=env, cwd=self.root, capture_output=True, text=True, timeout=600
        )
        if done.returncode != expected:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        told: dict[str, Any] = json.loads(Path(env["REPORT"]).read_text().splitlines()[-1])
        told["total_s"] = told["first_step_at"] - begun
        return told

    def headway(self, *options: str) -> list[str]:
        """The job below `headway run`."""
        run = ["run", "-o", str(self.root / f"run{self.count}"), "--no-report", *options]
        return [sys.executable, "-m", "headway", *run, "--", *self.words]

    def eager(self) -> dict[str, Any]:
        with self.container() as env:
            return self.run([*self.words, "--eager"], env)

    def cold_and_local(self) -> tuple[dict[str, Any], dict[str, Any]]:
        with self.container() as env:
            return self.run(self.words, env), self.run(self.words, env)

    def mega(self, archive: str) -> dict[str, Any]:
        with self.container() as env:
            return self.run([*self.words, "--load", archive], env)

    def cached(self, store: str, *options: str) -> dict[str, Any]:
        with self.container() as env:
            return self.run(self.headway("--compile-cache", store, *options), env)

    def warm(self, store: str, *options: str) -> dict[str, Any]:
        """A second life, forked: from its spawn to its first step."""
        with self.container() as env:
            env |= {"DIE_ONCE": str(Path(env["TMPDIR"]) / "died"), "LIVE_ON": "8"}
            options = ("--compile-cache", store, "--warm", "--restarts", "1", *options)
            told = self.run(self.headway(*options), env)
            journals = sorted((self.root / f"run{self.count}" / "journal").glob("launcher-*.1-*"))
            spawned = [
                record["t"] / 1e9
                for line in journals[0].read_text().splitlines()
                if (record := json.loads(line))["ev"] == "spawn"
            ]
            told["total_s"] = told["first_step_at"] - spawned[0]
            return told


def best(repeat: int, once: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The quickest of several."""
    return min((once() for _ in range(repeat)), key=lambda told: told["total_s"])


def measure(model: str, device: str, repeat: int, tiers: Sequence[str]) -> dict[str, Any]:
    """All rows of a model."""
    rows: dict[str, Any] = {}

    def took(name: str, told: dict[str, Any]) -> None:
        rows[name] = told
        print(f"  {model}: {name}: {told['total_s']:.2f} s, compile {told['compile_s']:.2f} s")

    with tempfile.TemporaryDirectory(prefix="bench-compile-") as folder:
        bench = Bench(model, device, Path(folder))
        with bench.container() as env:  # for the bytecode alone
            bench.run(bench.words, env)
        took("eager", bench.eager())
        cold, local = bench.cold_and_local()
        took("cold", cold)
        took("torch, same folder", local)
        mega = str(Path(folder) / "mega")
        with bench.container() as env:
            bench.run([*bench.words, "--save", mega], env)
        took("torch, MegaCache", best(repeat, partial(bench.mega, mega)))
        for tier in tiers:
            store = str(Path(folder) / f"store-{tier}")
            options = () if tier == "safe" else ("--compile-tier", tier)
            bench.cached(store, *options)
            for name, once in ((tier, bench.cached), (f"{tier}, warm", bench.warm)):
                took(f"headway, {name}", best(repeat, partial(once, store, *options)))
    return rows


def show(model: str, rows: dict[str, Any]) -> bool:
    """The table; whether all rows computed the same."""
    cold = rows["cold"]
    # Eager and compiled code add in another order; all that is compiled is the same code.
    same = all(
        abs(loss - other) <= 1e-5 * max(1.0, abs(other))
        for row in rows.values()
        for loss, other in zip(row["losses"], cold["losses"], strict=True)
    )
    print(f"\n{model}: {'' if same else 'NOT '}the same losses in all rows")
    for name, row in rows.items():
        total, ready, compiling = row["total_s"], row["ready_s"], row["compile_s"]
        print(
            f"  {name:<26} to first step {total:6.2f} s ({total / cold['total_s']:.3f})"
            f"   ready {ready:6.2f} s ({ready / cold['ready_s']:.3f})"
            f"   compile {compiling:6.2f} s ({compiling / cold['compile_s']:.3f})"
            f"   imports {row['import_s']:.2f} + {row['late_import_s']:.2f} s"
        )
    return same


def versions() -> dict[str, Any]:
    """What was measured with."""
    return {
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="dlrm,transformer,jagged")
    parser.add_argument("--tiers", default="safe,precompile")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", metavar="FILE", help="write the result there")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/compile.json")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    result = {**versions(), "device": args.device, "repeat": args.repeat, "models": found}
    same = True
    for model in args.models.split(","):
        found[model] = measure(model, args.device, args.repeat, args.tiers.split(","))
        same = show(model, found[model]) and same
        if args.out:  # what was measured is kept, should there be no time for the rest
            Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    keep("compile", result)
    if not same:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
