"""Identity of a job: its script and the arguments that do not change from run to run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway import redact
from headway.launch import run_folder

# Arguments that differ between runs of one job: names, paths, seeds, ports, training length.
PER_RUN_ARGUMENTS = frozenset(
    {
        "checkpoint_dir", "ckpt_dir", "ckpt_path", "date", "default_root_dir", "dirpath", "epochs",
        "exp_name", "experiment", "experiment_name", "id", "job_id", "log_dir", "logdir",
        "logging_dir", "master_addr", "master_port", "max_epochs", "max_steps", "name", "note",
        "notes", "num_epochs", "num_train_epochs", "out", "out_dir", "output", "output_dir", "port",
        "rdzv_endpoint", "rdzv_id", "resume", "resume_from", "resume_from_checkpoint", "run",
        "run_id", "run_name", "save_dir", "seed", "seed_everything", "steps", "storage_path", "tag",
        "time", "timestamp", "train_steps", "wandb_name",
    }
)  # fmt: skip
# Values that are unique to a run, in any argument: a date with a time, a UUID.
_UNIQUE_VALUE = re.compile(
    r"\b\d{8}[-_T]?\d{6}\b|\b\d{4}-\d\d-\d\d[T_ -]\d\d[:_-]?\d\d"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job that is run repeatedly."""

    name: str  # from its script
    id: str  # from its script and the identifying arguments
    words: tuple[str, ...]  # input of the id


def identify(command: Sequence[str]) -> Job:
    """The job of a command; independent of the launcher and the number of ranks."""
    name = run_folder.job_name(command)
    words = tuple(_identifying_words(script_and_args(redact.words(command))))
    digest = hashlib.sha256("\0".join(words).encode(errors="replace")).hexdigest()[:8]
    return Job(name, f"{name}-{digest}", words)


def script_and_args(command: Sequence[str]) -> list[str]:
    """The script or module and its arguments, without the launcher before it."""
    for index, word in enumerate(command):
        if word.endswith(".py"):
            return [os.path.normpath(word), *command[index + 1 :]]
    for index, word in enumerate(command[:-1]):
        if word in ("-m", "--module"):
            return list(command[index + 1 :])
    return list(command)


def _identifying_words(words: Sequence[str]) -> Iterator[str]:
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
            continue
        name, mark, _ = word.partition("=")
        if index and (mark or word.startswith("-")) and _argument_name(name) in PER_RUN_ARGUMENTS:
            following = words[index + 1] if index + 1 < len(words) else "-"
            skip = not mark and not following.startswith("-")
        elif not _UNIQUE_VALUE.search(word):
            yield word


def _argument_name(name: str) -> str:
    return name.lstrip("-+").replace("-", "_").rpartition(".")[2].lower()
