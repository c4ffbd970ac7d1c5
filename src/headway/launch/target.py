"""Which run a launch belongs to, and the folder its journals go to."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway import __version__
from headway.errors import RunExists, TargetUnwritable, UsageError
from headway.journal import remote
from headway.journal.folder import JOURNAL, RUN_JSON, read_identity, write_atomically
from headway.launch import together

# Jobs that a scheduler or torchrun starts again keep these, so their launches are one run.
IDENTITIES = (
    ("HEADWAY_RUN", ""),
    ("TORCHELASTIC_RUN_ID", "elastic-"),
    ("SLURM_JOB_ID", "slurm-"),
    ("RAY_JOB_ID", "ray-"),
)
SHELLS = ("bash", "sh", "env", "srun", "torchrun", "accelerate", "python", "python3")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a launch records."""

    run: str
    folder: Path
    url: str | None
    launch: str
    index: int  # how many launches of this run came before

    @property
    def journal(self) -> Path:
        """The folder of the journals."""
        return self.folder / JOURNAL

    @cached_property
    def absolute_journal(self) -> str:
        """The same from anywhere; asked for while the working directory is there."""
        return str(self.journal.resolve())


def prepare(
    command: Sequence[str],
    *,
    output: str | None,
    name: str | None,
    force: bool = False,
    labels: Mapping[str, str] | None = None,
    env: Mapping[str, str] = os.environ,
) -> Target:
    """Make or join the run folder; one sentence if that cannot be done."""
    identity = _identity(env)
    url = output if output and "://" in output else None
    if url is not None:
        remote.filesystem(url)  # before the job starts, not when it has ended
    run = (
        name
        or (Path(output.rstrip("/")).name if output else identity)
        or f"{job(command)}-{time.strftime('%m%d-%H%M%S')}"
    )
    if "/" in run or run in (".", "..") or not run.isprintable():
        raise UsageError(f"the run name {run!r} cannot be a folder's name; give another --name")
    folder = Path(output) if output and url is None else Path("headway") / run
    if not (name or output):
        folder = _own(folder, identity, command)
        run = folder.name
    known = _join(folder, run, identity, force)
    _write(folder, run, identity, command, url, known, labels)
    launch = together.take(folder / JOURNAL, env)
    names = {path.name.split("-")[1] for path in (folder / JOURNAL).glob("launcher-*.jsonl")}
    before = {name for name in names if name.partition(".")[0] != launch}  # restarts are name.1 ...
    return Target(run=run, folder=folder, url=url, launch=launch, index=len(before))


def _identity(env: Mapping[str, str]) -> str | None:
    for variable, prefix in IDENTITIES:
        value = env.get(variable, "")
        if value and value.lower() != "none":
            return prefix + value.replace("/", "_")
    return None


def job(command: Sequence[str]) -> str:
    """A name for what the command trains, the same for every run of it."""
    scripts = [word for word in command if word.endswith(".py")]
    programs = [word for word in command if Path(word).name not in SHELLS and word[:1] != "-"]
    stem = Path((scripts or programs or command)[0]).stem
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)[:40] or "run"


def _own(folder: Path, identity: str | None, command: Sequence[str]) -> Path:
    """The first of run, run-2, ... that is free, or is this very job's: one Slurm job may have
    several trainings, and each of them may be started again."""
    number, found = 1, folder
    while found.exists():
        known = _identity_of(found)
        same = identity is not None and known.get("identity") == identity
        if same and known.get("command") == list(command):
            break
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


def _identity_of(folder: Path) -> dict[str, Any]:
    """What run.json says; another node may be just about to write it."""
    for _ in range(40):
        known = read_identity(folder)
        if known or not (folder / JOURNAL).is_dir() or any((folder / JOURNAL).iterdir()):
            return known
        time.sleep(0.05)
    return {}


def _join(folder: Path, run: str, identity: str | None, force: bool) -> bool:
    """Whether the folder is there already and is this very run."""
    if not folder.exists():
        return False
    known = _identity_of(folder)
    if identity is not None and known.get("identity") == identity:
        return True
    is_run = (folder / JOURNAL).is_dir()
    if is_run and force:
        shutil.rmtree(folder / JOURNAL)
        return False
    if is_run:
        raise RunExists(
            f"the run {run} exists in {folder}; give another --name, or add --force to replace it"
        )
    if not folder.is_dir() or any(folder.iterdir()):
        raise RunExists(f"{folder} exists and is not a run folder; give another -o")
    return False


def _write(
    folder: Path,
    run: str,
    identity: str | None,
    command: Sequence[str],
    url: str | None,
    known: bool,
    labels: Mapping[str, str] | None = None,
) -> None:
    try:
        (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
        if known:
            probe = folder / JOURNAL / f".write-{os.getpid()}"
            probe.touch()
            probe.unlink()
            return
        facts = {
            "schema": 1,
            "run": run,
            "identity": identity,
            "command": list(command),
            "url": url,
            "created": time.time(),
            "cwd": os.getcwd(),
            "host": os.uname().nodename,
            "user": os.environ.get("USER", ""),
            "versions": versions(),
            "labels": dict(labels or {}),
        }
        write_atomically(folder / RUN_JSON, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise TargetUnwritable(
            f"cannot write to {folder}: {error.strerror}; give a folder you may write with -o"
        ) from None


def versions() -> dict[str, str]:
    """Of Headway, Python and torch, as they are installed here."""
    found = {"headway": __version__, "python": sys.version.split()[0]}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")  # found, not imported
    return found


def adopt() -> tuple[Path, str]:
    """A journal folder for a process that no `headway run` started (`import headway.auto`)."""
    identity = _identity(os.environ)
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "python"
    run = identity or f"{script}-{time.strftime('%m%d')}-{os.getppid()}"
    folder = Path("headway") / run
    _write(folder, run, identity, sys.argv, None, (folder / RUN_JSON).exists())
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return (folder / JOURNAL).resolve(), f"auto-{os.getppid()}-{restart}"
