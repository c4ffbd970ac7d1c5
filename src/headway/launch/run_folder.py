"""Which run a launch belongs to, and the folder that it records to."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway import __version__, redact
from headway.errors import FINE, Reason, TargetUnwritable, UsageError
from headway.journal import file_access
from headway.journal.run_files import (
    COMMAND_JSON,
    JOURNAL,
    RUN_JSON,
    read_command,
    read_identity,
    write_command,
)
from headway.launch import coordination
from headway.storage import remote
from headway.storage.atomic_write import write_exclusively

# Jobs that a scheduler or torchrun starts again keep these, so their launches form one run.
IDENTITIES = (
    ("HEADWAY_RUN", ""),
    ("TORCHELASTIC_RUN_ID", "elastic-"),
    ("SLURM_JOB_ID", "slurm-"),
    ("RAY_JOB_ID", "ray-"),
)
TAIL_BYTES = 65536  # bytes at the end of a launcher's journal that show how its job ended
SHELLS = ("bash", "sh", "env", "srun", "torchrun", "accelerate", "python", "python3")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The run and the folder that a launch records to."""

    run: str
    folder: Path
    url: str | None
    launch: str
    index: int  # how many launches of this run came before
    temporary: bool = False  # the folder is removed when the launch has ended
    note: Reason = FINE  # why it is not the requested folder

    @property
    def journal(self) -> Path:
        return self.folder / JOURNAL

    @cached_property
    def absolute_journal(self) -> str:
        """The same as an absolute path; evaluated while the working directory exists."""
        return str(self.journal.resolve())


def prepare(
    command: Sequence[str],
    *,
    output: str | None,
    name: str | None,
    force: bool = False,
    join: bool = False,
    labels: Mapping[str, str] | None = None,
    boosters: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
) -> RunFolder:
    """Create or join the run folder; TargetUnwritable if that is not possible.

    A folder that is in use is left alone: the run gets the next free name, and `note` gives the
    reason.
    """
    identity = _identity_from_env(env)
    if join and not (name or output or identity):
        raise UsageError(
            "--join requires the run to join: give its --name or -o", code="join-without-name"
        )
    url = output if output and "://" in output else None
    if url is not None:
        remote.check_installed(url)
    run = (
        name
        or (Path(output.rstrip("/")).name if output else identity)
        or f"{job_name(command)}-{time.strftime('%m%d-%H%M%S')}"
    )
    if "/" in run or run in (".", "..") or not run.isprintable():
        raise UsageError(
            f"the run name {run!r} is not a valid folder name; give another --name",
            code="run-name-invalid",
        )
    preferred = Path(output) if output and url is None else Path("headway") / run
    request = _RunRequest(
        identity=identity,
        command=None if name or output else list(command),  # else commands may differ
        join=join,
        force=force,
    )
    try:
        content = _run_json(run, identity, command, url, labels, boosters)
        folder, reason = _choose_folder(preferred, request, content)
        run = folder.name if folder != preferred else run
        launch = coordination.join_or_create_launch(folder / JOURNAL, env)
        names = {path.name.split("-")[1] for path in (folder / JOURNAL).glob("launcher-*.jsonl")}
    except OSError as error:
        raise TargetUnwritable(f"cannot write to {preferred}: {error.strerror or error}") from None
    earlier = {
        name for name in names if name.partition(".")[0] != launch
    }  # restarts are name.1 ...
    note = FINE
    if folder != preferred and (name or output or identity):  # else the name was chosen here
        note = Reason(f"{reason}; recording to {folder}", code=reason.code)
    return RunFolder(run=run, folder=folder, url=url, launch=launch, index=len(earlier), note=note)


def prepare_temporary(command: Sequence[str], url: str | None, reason: str) -> RunFolder:
    """A temporary folder, which the watch and the restarts of a job require."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="headway-run-"))
    except OSError:
        raise TargetUnwritable(reason) from None
    try:
        run = Path(url.rstrip("/")).name if url else job_name(command)
        _create(folder, _run_json(run, None, command, url))
        launch = coordination.join_or_create_launch(folder / JOURNAL, {})
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise TargetUnwritable(reason) from None
    note = Reason(reason, code=TargetUnwritable.code)
    return RunFolder(
        run=run, folder=folder, url=url, launch=launch, index=0, temporary=True, note=note
    )


def _identity_from_env(env: Mapping[str, str]) -> str | None:
    for variable, prefix in IDENTITIES:
        value = env.get(variable, "")
        if value and value.lower() != "none":
            return prefix + value.replace("/", "_")
    return None


def job_name(command: Sequence[str]) -> str:
    """A name for what the command trains, the same for every run of it."""
    scripts = [word for word in command if word.endswith(".py")]
    programs = [word for word in command if Path(word).name not in SHELLS and word[:1] != "-"]
    stem = Path((scripts or programs or command)[0]).stem
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)[:40] or "run"


# -- choosing the folder -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _RunRequest:
    """What a launch knows about the run that it belongs to."""

    identity: str | None
    command: list[str] | None  # which the run must have; None: the run was requested by name
    join: bool
    force: bool


def _choose_folder(
    preferred: Path, request: _RunRequest, content: Mapping[str, Any]
) -> tuple[Path, Reason]:
    """The first of run, run-2, ... that is free or can be joined, and why it is not the first."""
    number, folder, first = 1, preferred, FINE
    while True:
        reason = _refusal(folder, request)
        if reason is None:
            return folder, first  # joined
        renamed = {**content, "run": folder.name} if first else content
        if not reason and _create(folder, renamed):
            return folder, first
        if reason:  # else another launch was faster: check again
            first = first or reason
            number += 1
            folder = preferred.with_name(f"{preferred.name}-{number}")


def _refusal(folder: Path, request: _RunRequest) -> Reason | None:
    """Why this launch cannot use the folder; FINE if it is free, None if it is joined."""
    if not os.path.lexists(folder):
        return FINE
    if not folder.is_dir():
        return Reason(f"{folder} is a file", code="folder-exists")
    identity = _identity_of(folder)
    if not (identity or (folder / JOURNAL).is_dir()):
        empty = all(entry.name.startswith(f".{RUN_JSON}.") for entry in folder.iterdir())
        return FINE if empty else Reason(f"{folder} is not a run folder", code="folder-exists")
    probe_file = folder / f".write-{os.uname().nodename}-{os.getpid()}"
    try:
        probe_file.touch()
        own = probe_file.stat()  # by the file system: some map users and have a clock of their own
        probe_file.unlink()
    except PermissionError:
        return Reason(f"{folder} cannot be written", code="run-of-another-user")
    existing = [path for path in (folder / RUN_JSON, folder / JOURNAL) if path.exists()]
    if any(path.stat().st_uid != own.st_uid for path in existing):
        return Reason(f"{folder} belongs to another user", code="run-of-another-user")
    if request.force:
        shutil.rmtree(folder / JOURNAL, ignore_errors=True)
        for name in (RUN_JSON, COMMAND_JSON):
            (folder / name).unlink(missing_ok=True)
        return FINE
    is_same = request.identity is not None and identity.get("identity") == request.identity
    if request.command is not None:
        is_same = is_same and read_command(folder) in (
            request.command,
            redact.words(request.command),
        )
    if not (is_same or request.join):
        return Reason(f"the run {folder.name} exists in {folder}", code="run-exists")
    journal = folder / JOURNAL
    if not coordination.has_live_launcher(journal, own.st_mtime) and _is_complete(journal):
        return Reason(f"the run {folder.name} is complete", code="run-complete")
    journal.mkdir(exist_ok=True)
    return None


def _identity_of(folder: Path) -> dict[str, Any]:
    """The content of run.json; without hard links another node may be writing it at the moment."""
    for _ in range(20):
        identity = read_identity(folder)
        if identity or not (folder / RUN_JSON).exists():
            return identity
        time.sleep(0.04)
    return {}


def _create(folder: Path, content: Mapping[str, Any]) -> bool:
    """Create the folder for this run; False if another launch was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    redacted = redact.data(dict(content))
    if not write_exclusively(folder / RUN_JSON, json.dumps(redacted, indent=1) + "\n"):
        return False
    if redacted["command"] != content["command"]:
        write_command(folder, content["command"])
    (folder / JOURNAL).mkdir(exist_ok=True)
    return True


def _is_complete(journal: Path) -> bool:
    """Whether the newest launch ended successfully on each of its nodes."""
    launches: dict[str, list[tuple[int, bool]]] = {}
    last: dict[tuple[str, str], tuple[int, int, bool]] = {}
    for path in journal.glob("launcher-*.jsonl"):
        name, _, process = path.name.removeprefix("launcher-").partition("-")
        launch, _, number = name.partition(".")
        attempt = int(number) if number.isdecimal() else 0
        previous = last.get((launch, process))
        if previous is None or previous[0] < attempt:
            last[launch, process] = attempt, *_launcher_end(path)
    for (launch, _), (_, start, ended_well) in last.items():
        launches.setdefault(launch, []).append((start, ended_well))
    newest = max(launches.values(), key=max, default=[])
    return bool(newest) and all(ended_well for _, ended_well in newest)


def _launcher_end(path: Path) -> tuple[int, bool]:
    """When a launcher started, and whether its job ended successfully without a stop request."""
    start, code = 0, None
    try:
        with file_access.open_file(path) as file:
            start = int(json.loads(file.readline())["wall"])
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except (OSError, ValueError, KeyError, TypeError):
        return start, False
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            if line.startswith((b'{"ev":"signal"', b'{"ev":"preempted"')):
                return start, False
            if line.startswith(b'{"ev":"exit"'):
                code = json.loads(line).get("code")
    return start, code == 0


def _run_json(
    run: str,
    identity: str | None,
    command: Sequence[str],
    url: str | None,
    labels: Mapping[str, str] | None = None,
    boosters: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "schema": 1,
        "run": run,
        "identity": identity,
        "command": list(command),
        "url": url,
        "created": time.time(),
        "cwd": os.getcwd(),
        "host": os.uname().nodename,
        "user": os.environ.get("USER", ""),
        "versions": installed_versions(),
        "labels": dict(labels or {}),
        "boosters": list(boosters),
    }


def installed_versions() -> dict[str, str]:
    """Versions of Headway, Python and torch as installed here."""
    versions = {"headway": __version__, "python": sys.version.split()[0]}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["torch"] = importlib.metadata.version("torch")  # looked up, not imported
    return versions


def folder_of_process() -> tuple[Path, str]:
    """A journal folder for a process that `headway run` did not start (`import headway.auto`)."""
    identity = _identity_from_env(os.environ)
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "python"
    run = identity or f"{script}-{time.strftime('%m%d')}-{os.getppid()}"
    folder = Path("headway") / run
    _create(folder, _run_json(run, identity, sys.argv, None))  # unless another rank was faster
    (folder / JOURNAL).mkdir(exist_ok=True)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return (folder / JOURNAL).resolve(), f"auto-{os.getppid()}-{restart}"
