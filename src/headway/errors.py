"""Every error a user can meet.

HeadwayError            one sentence on stderr, no traceback; exit code 70
  UsageError            the command or its input is wrong; exit code 2
    RunNotFound         there is no run at that path
    NotARun             the folder is there, but it is no run
    NewerSchema         written by a newer Headway than this one
    TargetUnwritable    the run folder cannot be made or written
    MissingExtra        a package is needed that is not installed
    SlurmRefused        a program of Slurm failed, or gave no answer
  SaveFailed            a checkpoint could not be written or committed
  CheckpointDamaged     a checkpoint is not what its manifest says
  CheckpointMismatch    a checkpoint and the live state have other tensors
  CheckpointUntrusted   reading a checkpoint would run code that nobody has allowed
  RestoreFailed         a good checkpoint could not be put into the live state
  PublishFailed         an anchor did not become a snapshot; exit code 1
    PublishDeferred     it could not now: the machine, not the anchor, is the reason
  SnapshotDamaged       a snapshot is not what its manifest says
  NotTold               a scheduler did not take the price of a run; exit code 1
  RegistryFailed        a snapshot serves, and its model registry does not know
"""

from __future__ import annotations


class HeadwayError(Exception):
    """What is wrong, the value, and what to type next.

    `code` identifies the problem: it stays the same when the sentence changes. A class for a
    single problem has its code as an attribute, a class for many takes it as an argument.
    `fields` are the values that the sentence is about.
    """

    exit_code = 70
    code = ""

    def __init__(self, message: str = "", *, code: str | None = None, **fields: object) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.fields = fields


class HeadwayWarning(UserWarning):
    """Something did not work, and the job continues."""

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    def __str__(self) -> str:
        return with_code(self.args[0], code=self.code)


class Reason(str):
    """Why something is not as it should be, with the code of the problem; empty if it is."""

    code: str

    def __new__(cls, text: str = "", *, code: str = "") -> Reason:
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


FINE = Reason()


def with_code(text: str, *, code: str) -> str:
    """A line for a person, with the code of the problem at its end."""
    return f"{text} [{code}]" if code else text


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra, wherever Headway itself came from."""
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
    """Such a line without the code at its end, and the code; "" where there is none."""
    import re

    match = re.fullmatch(r"(.*) \[([a-z0-9-]+)\]", text, re.DOTALL)
    return (match[1], match[2]) if match else (text, "")


class UsageError(HeadwayError):
    """The command or its input is wrong."""

    exit_code = 2


class RunNotFound(UsageError):
    """There is no run at that path."""

    code = "run-not-found"


class NotARun(UsageError):
    """The folder is there, but it holds no journal."""

    code = "not-a-run"


class NewerSchema(UsageError):
    """A journal was written by a newer Headway than this one."""

    code = "newer-schema"


class TargetUnwritable(UsageError):
    """The run folder cannot be made or written."""

    code = "target-unwritable"


class MissingExtra(UsageError):
    """A package is needed that is not installed; `extra` is the extra that brings it."""

    code = "missing-package"

    def __init__(self, needs: str, *, extra: str, **fields: object) -> None:
        super().__init__(f"{needs}; type: {install_command(extra)}")
        self.fields = {"extra": extra, **fields}


class SlurmRefused(UsageError):
    """A program of Slurm failed, or gave no answer."""


class SaveFailed(HeadwayError):
    """A checkpoint could not be written or committed."""


class CheckpointDamaged(HeadwayError):
    """A checkpoint is not what its manifest says."""


class CheckpointMismatch(HeadwayError):
    """A checkpoint and the live state have other tensors; nothing was changed."""

    code = "checkpoint-mismatch"


class CheckpointUntrusted(HeadwayError):
    """Reading a checkpoint would run code that nobody has allowed."""

    code = "checkpoint-untrusted"


class RestoreFailed(HeadwayError):
    """A good checkpoint could not be put into the live state, of which a part may be changed."""

    code = "restore-failed"


class PublishFailed(HeadwayError):
    """An anchor did not become a snapshot, and what serves is as it was."""

    exit_code = 1


class PublishDeferred(PublishFailed):
    """An anchor could not become a snapshot now; the same may succeed later."""


class SnapshotDamaged(HeadwayError):
    """A snapshot is not what its manifest says."""


class RegistryFailed(HeadwayError):
    """A snapshot serves, and its model registry does not know."""


class SchedulerUpdateFailed(HeadwayError):
    """A scheduler did not take the price of a run."""

    exit_code = 1
