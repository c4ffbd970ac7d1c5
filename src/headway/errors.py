"""The errors that Headway raises.

HeadwayError            one sentence on stderr, no traceback; exit code 70
  UsageError            the command or its input is invalid; exit code 2
    RunNotFound         there is no run at that path
    NotARun             the folder exists, but holds no journal
    NewerSchema         written by a newer Headway than this one
    TargetUnwritable    the run folder cannot be created or written
    MissingExtra        a required package is not installed
    SlurmRefused        a Slurm command failed or timed out
  SaveFailed            a checkpoint could not be written or committed
  CheckpointDamaged     a checkpoint does not match its manifest
  CheckpointMismatch    a checkpoint and the live state have different tensors
  CheckpointUntrusted   reading a checkpoint would run code that was not allowed
  RestoreFailed         a valid checkpoint could not be loaded into the live state
  PublishFailed         an anchor checkpoint could not be published; exit code 1
    PublishDeferred     it may succeed later: the cause is the machine, not the anchor
  SnapshotDamaged       a snapshot does not match its manifest
  SchedulerUpdateFailed a scheduler did not accept the eviction cost of a run; exit code 1
  RegistryFailed        a snapshot was published, but not registered in the model registry
"""

from __future__ import annotations


class HeadwayError(Exception):
    """An error with a message that states the problem, the value and the next command.

    `code` identifies the problem and stays the same when the message changes. A class for a
    single problem has its code as an attribute, a class for several takes it as an argument.
    `fields` holds the values that the message mentions.
    """

    exit_code = 70
    code = ""

    def __init__(self, message: str = "", *, code: str | None = None, **fields: object) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.fields = fields


class HeadwayWarning(UserWarning):
    """A problem that does not stop the job."""

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    def __str__(self) -> str:
        return with_code(self.args[0], code=self.code)


class Reason(str):
    """Why something cannot be used, with the code of the problem; empty if it can."""

    code: str

    def __new__(cls, text: str = "", *, code: str = "") -> Reason:
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


FINE = Reason()


def with_code(text: str, *, code: str) -> str:
    """Append the code of the problem to a message: `text [code]`."""
    return f"{text} [{code}]" if code else text


def install_command(extra: str) -> str:
    """The pip command for the packages of an extra, also where Headway is not from PyPI."""
    import re
    import shlex
    from importlib import metadata

    try:
        declared = metadata.requires("headway") or []
    except metadata.PackageNotFoundError:
        declared = []
    marker = re.compile(rf"\bextra == ['\"]{extra}['\"]")
    packages = [line.partition(";")[0].strip() for line in declared if marker.search(line)]
    return shlex.join(["pip", "install", *(packages or [f"headway[{extra}]"])])


def split_code(text: str) -> tuple[str, str]:
    """Split `text [code]` into text and code; the code is "" if there is none."""
    import re

    match = re.fullmatch(r"(.*) \[([a-z0-9-]+)\]", text, re.DOTALL)
    return (match[1], match[2]) if match else (text, "")


class UsageError(HeadwayError):
    """The command or its input is invalid."""

    exit_code = 2


class RunNotFound(UsageError):
    """There is no run at this path."""

    code = "run-not-found"


class NotARun(UsageError):
    """The folder exists, but holds no journal."""

    code = "not-a-run"


class NewerSchema(UsageError):
    """A journal was written by a newer Headway than this one."""

    code = "newer-schema"


class TargetUnwritable(UsageError):
    """The run folder cannot be created or written."""

    code = "target-unwritable"


class MissingExtra(UsageError):
    """A required package is not installed; `extra` is the extra that includes it."""

    code = "missing-package"

    def __init__(self, needs: str, *, extra: str, **fields: object) -> None:
        super().__init__(f"{needs}; type: {install_command(extra)}")
        self.fields = {"extra": extra, **fields}


class SlurmRefused(UsageError):
    """A Slurm command failed or timed out."""


class SaveFailed(HeadwayError):
    """A checkpoint could not be written or committed."""


class CheckpointDamaged(HeadwayError):
    """A checkpoint does not match its manifest."""


class CheckpointMismatch(HeadwayError):
    """A checkpoint and the live state have different tensors; nothing was changed."""

    code = "checkpoint-mismatch"


class CheckpointUntrusted(HeadwayError):
    """Reading a checkpoint would run code that was not allowed."""

    code = "checkpoint-untrusted"


class RestoreFailed(HeadwayError):
    """A valid checkpoint could not be loaded; part of the live state may have changed."""

    code = "restore-failed"


class PublishFailed(HeadwayError):
    """An anchor checkpoint could not be published; the served snapshot is unchanged."""

    exit_code = 1


class PublishDeferred(PublishFailed):
    """An anchor checkpoint could not be published now; a retry may succeed."""


class SnapshotDamaged(HeadwayError):
    """A snapshot does not match its manifest."""


class RegistryFailed(HeadwayError):
    """A snapshot was published, but not registered in the model registry."""


class SchedulerUpdateFailed(HeadwayError):
    """A scheduler did not accept the eviction cost of a run."""

    exit_code = 1
