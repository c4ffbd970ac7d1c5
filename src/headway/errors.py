"""Every error a user can meet.

HeadwayError            one sentence on stderr, no traceback; exit code 70
  UsageError            the command or its input is wrong; exit code 2
    RunNotFound         there is no run at that path
    NotARun             the folder is there, but it is no run
    NewerSchema         written by a newer Headway than this one
    RunExists           the name is taken by another run
    TargetUnwritable    the run folder cannot be made or written
    MissingExtra        a package is needed that is not installed
    SlurmRefused        a program of Slurm failed, or gave no answer
  SaveFailed            a checkpoint could not be written or committed
  CheckpointDamaged     a checkpoint is not what its manifest says
  PublishFailed         an anchor did not become a snapshot; exit code 1
  SnapshotDamaged       a snapshot is not what its manifest says
  NotTold               a scheduler did not take the price of a run; exit code 1
  RegistryFailed        a snapshot serves, and its model registry does not know
"""

from __future__ import annotations


class HeadwayError(Exception):
    """What is wrong, the value, and what to type next."""

    exit_code = 70


class UsageError(HeadwayError):
    """The command or its input is wrong."""

    exit_code = 2


class RunNotFound(UsageError):
    """There is no run at that path."""


class NotARun(UsageError):
    """The folder is there, but it holds no journal."""


class NewerSchema(UsageError):
    """A journal was written by a newer Headway than this one."""


class RunExists(UsageError):
    """The name is taken by another run."""


class TargetUnwritable(UsageError):
    """The run folder cannot be made or written."""


class MissingExtra(UsageError):
    """A package is needed that is not installed."""


class SlurmRefused(UsageError):
    """A program of Slurm failed, or gave no answer."""


class SaveFailed(HeadwayError):
    """A checkpoint could not be written or committed."""


class CheckpointDamaged(HeadwayError):
    """A checkpoint is not what its manifest says."""


class PublishFailed(HeadwayError):
    """An anchor did not become a snapshot, and what serves is as it was."""

    exit_code = 1


class SnapshotDamaged(HeadwayError):
    """A snapshot is not what its manifest says."""


class RegistryFailed(HeadwayError):
    """A snapshot serves, and its model registry does not know."""


class NotTold(HeadwayError):
    """A scheduler did not take the price of a run."""

    exit_code = 1
