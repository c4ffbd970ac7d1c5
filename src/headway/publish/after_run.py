"""Publish after a run: find its last checkpoint in its journals, and start a publish job for it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError, UsageError
from headway.journal import run_files as notes
from headway.journal.file_access import file_identity
from headway.journal.reader import Journal, Span, read_journals
from headway.launch.run_folder import RunFolder

DCP_METADATA = ".metadata"  # of a DCP folder
UNSUPPORTED_FORMATS = ("safetensors",)  # formats that cannot be published from


@dataclass(frozen=True)
class SavedCheckpoints:
    """Saved checkpoints by format, newest first; with their current paths."""

    stores: tuple[str, ...] = ()  # of Checkpointers
    folders: tuple[str, ...] = ()  # of DCP
    files: tuple[str, ...] = ()  # of torch.save
    on_this_host: bool = True  # rank 0 ran on this host


def find_saved(folder: Path, host: str) -> SavedCheckpoints:
    """All saves of a run, from the folder of its journals."""
    journals, _ = read_journals(str(folder))
    first = [journal for journal in journals if journal.rank in (0, None)]
    spans = sorted(_finished_saves(first), key=lambda pair: -pair[0])
    stores = [store for _, span in spans if isinstance(store := span.fields.get("store"), str)]
    paths = list(filter(None, (_current_path(span) for _, span in spans)))
    ranked = any(journal.rank is not None for journal in journals)
    hosts = [j.host for j in sorted(first, key=lambda j: j.wall) if j.rank == 0]
    return SavedCheckpoints(
        stores=tuple(dict.fromkeys(stores)),
        folders=tuple(dict.fromkeys(path for path in paths if os.path.isdir(path))),
        files=tuple(dict.fromkeys(path for path in paths if os.path.isfile(path))),
        on_this_host=hosts[-1:] == [host] if ranked else True,
    )


def _finished_saves(journals: Sequence[Journal]) -> Iterator[tuple[int, Span]]:
    """Saves that were completed, with their wall clock time."""
    for journal in journals:
        for span in journal.spans:
            is_unfinished = span.end is None or span.fields.get("error") or span.fields.get("part")
            if span.name == "checkpoint_save" and not is_unfinished:
                yield journal.wall + (span.end or 0) - journal.opened, span


def _current_path(span: Span) -> str | None:
    """The current path of a save: many are written under another name and then renamed."""
    path, identity = span.fields.get("path"), span.fields.get("file")
    if not isinstance(path, str) or "://" in path or span.fields.get("what") in UNSUPPORTED_FORMATS:
        return None
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, DCP_METADATA)):
        return None
    if file_identity(path) == (identity or file_identity(path)):
        return path if os.path.exists(path) else None
    parent = os.path.dirname(path)
    try:
        siblings = [os.path.join(parent, name) for name in os.listdir(parent)]
    except OSError:
        return None
    return next((sibling for sibling in siblings if file_identity(sibling) == identity), None)


LOCAL, SLURM = "local", "slurm"
PLACEHOLDERS = ("{anchor}", "{recipe}", "{store}", "{run}", "{command}")
SUBMIT_S = 60.0  # limit for sbatch
# Variables that identify a job or rank: a publish process is neither.
JOB_VARIABLES = (
    "HEADWAY_",
    "SLURM_",
    "TORCHELASTIC_",
    "RAY_JOB_ID",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
)
_publish_processes: list[subprocess.Popen[bytes]] = []  # else Python warns about them


class PublishNotStarted(HeadwayError):
    """The publish job could not be started; the message is the reason."""

    code = "publish-not-started"


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """What is published, to where, and how."""

    recipe: str  # absolute
    store: str  # absolute, or a URL
    by: tuple[str, ...] = (LOCAL,)  # or slurm and options of sbatch, or a command


def parse_request(recipe: str, store: str, by: str) -> PublishRequest:
    """Parse the flags of a publish; UsageError if it cannot be started."""
    try:
        words = shlex.split(by)
    except ValueError as error:
        raise UsageError(
            f"--publish-by {by!r} cannot be read: {error}", code="publish-by-invalid"
        ) from None
    if not words:
        raise UsageError(
            "--publish-by is empty; give local, slurm or a command", code="publish-by-invalid"
        )
    program = {LOCAL: sys.executable, SLURM: "sbatch"}.get(words[0], words[0])
    if not shutil.which(program):
        raise UsageError(
            f"--publish-by {by}: the command {program} was not found",
            code="command-not-found",
            command=program,
        )
    if words[0] == LOCAL and len(words) > 1:
        raise UsageError(
            f"--publish-by {by}: `local` takes nothing after it", code="publish-by-invalid"
        )
    place = store if "://" in store else os.path.abspath(store)
    return PublishRequest(recipe=os.path.abspath(recipe), store=place, by=tuple(words))


def start_publish(request: PublishRequest, anchor: str, run_folder: RunFolder) -> str:
    """Start the publish and return at once; returns where it runs, or raises PublishNotStarted."""
    folder = _free_folder(run_folder.folder.resolve())
    training = str(run_folder.folder.resolve())
    command = _command(request, anchor, folder, training)
    log = Path(training, "publish.log")
    fields = {"run": folder.name, "folder": str(folder), "anchor": anchor, "store": request.store}
    fields |= {"recipe": request.recipe, "by": shlex.join(request.by), "log": str(log)}
    try:
        notes.write_publish_note(Path(training), {**fields, "begun": time.time()})
        start = {LOCAL: _start_locally, SLURM: _submit_to_slurm}.get(
            request.by[0], _start_by_command
        )
        location = start(request, command, log, {"anchor": anchor, "run": training})
    except (OSError, PublishNotStarted, subprocess.TimeoutExpired) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        with contextlib.suppress(OSError):
            notes.write_publish_note(Path(training), {**fields, "error": reason})
        raise PublishNotStarted(reason) from None
    return f"{location}, see {log}"


def _free_folder(training: Path) -> Path:
    """The folder of the publish's own run, next to that of the training."""
    number, folder = 1, training.with_name(f"{training.name}-publish")
    while folder.exists():
        number += 1
        folder = training.with_name(f"{training.name}-publish-{number}")
    return folder


def _command(request: PublishRequest, anchor: str, folder: Path, training: str) -> list[str]:
    headway = [sys.executable, "-m", "headway"]
    run = [*headway, "run", "-o", str(folder), "--name", folder.name]
    run += ["--no-report", "--no-hang-watch", "--"]
    publish = ["publish", anchor, "--recipe", request.recipe, "--to", request.store]
    return [*run, *headway, *publish, "--run", training]


def _start_locally(
    _: PublishRequest, command: Sequence[str], log: Path, __: Mapping[str, str]
) -> str:
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    env = {key: value for key, value in os.environ.items() if not key.startswith(JOB_VARIABLES)}
    env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # the accelerators are released
    return f"process {_start_detached([*nice, *command], log, env)}"


def _start_by_command(
    request: PublishRequest, command: Sequence[str], log: Path, known_values: Mapping[str, str]
) -> str:
    values = {
        "{recipe}": request.recipe,
        "{store}": request.store,
        "{command}": shlex.join(command),
    }
    values |= {f"{{{name}}}": value for name, value in known_values.items()}
    words = [_fill(word, values) for word in request.by]
    if words == list(request.by):
        words += command
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    return f"process {_start_detached(words, log, env)} ({request.by[0]})"


def _fill(word: str, values: Mapping[str, str]) -> str:
    for place in PLACEHOLDERS:
        word = word.replace(place, values[place])
    return word


def _unblock_signals() -> None:
    """The launcher's blocked signals must not be inherited."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _start_detached(command: Sequence[str], log: Path, env: Mapping[str, str]) -> int:
    """Start in a new session, so that it outlives this process and its terminal."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
            preexec_fn=_unblock_signals,
        )
    _publish_processes.append(child)
    return child.pid


def _submit_to_slurm(
    request: PublishRequest, command: Sequence[str], log: Path, known_values: Mapping[str, str]
) -> str:
    script = Path(known_values["run"], "publish.sbatch")
    script.write_text(
        "#!/bin/sh\n"
        f"#SBATCH --job-name={Path(known_values['run']).name}-publish\n"
        f"#SBATCH --output={log}\n#SBATCH --open-mode=append\n#SBATCH --ntasks=1\n"
        f"cd {shlex.quote(os.getcwd())} || exit\nexec {shlex.join(command)}\n"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    submit = ["sbatch", "--parsable", *request.by[1:], str(script)]
    completed = subprocess.run(
        submit,
        env=env,
        capture_output=True,
        text=True,
        timeout=SUBMIT_S,
        preexec_fn=_unblock_signals,
    )
    if completed.returncode:
        error = (completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"])[-1]
        raise PublishNotStarted(f"sbatch: {error.removeprefix('sbatch: ')}")
    return f"Slurm job {completed.stdout.strip().partition(';')[0]}"
