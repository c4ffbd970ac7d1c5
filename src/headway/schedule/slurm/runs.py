"""The run of a job, and what that says of itself.

A run is found by the comment of its job (`sbatch --comment=headway=FOLDER`), or among the folders
below `headway` where the job was submitted, or below a folder that the administrator names: it is
the one whose launcher has noted the job's number.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError
from headway.ledger.model import NS
from headway.ledger.run import load
from headway.schedule import cost
from headway.schedule.slurm.state import SlurmJob

LAUNCHER_JOURNALS = "journal/launcher-*.jsonl"  # their first line is the head: docs/journal.md
_COMMENT = re.compile(r"(?:^|[\s;,])headway=([^\s;,]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What a run says of itself; seconds."""

    unsaved: float
    saved_at: float | None  # since the epoch: when this attempt's newest durable save was taken
    save: float | None  # until one is durable; None: nobody there heeds a notice
    recover: float
    preemptions: int
    outcome: str  # of the newest attempt


class RunIndex:
    """Finds the runs of jobs, and keeps what it has found."""

    def __init__(self, places: Sequence[Path] = ()) -> None:
        self._places = tuple(places)
        self._found: dict[int, Path] = {}

    def folder(self, job: SlurmJob) -> Path | None:
        """Of the run that the job is."""
        known = self._found.get(job.number)
        if known is None:
            known = next(
                (path for path in self._likely(job) if _belongs_to_job(path, job.number)), None
            )
            if known is not None:
                self._found[job.number] = known
        return known

    def told(self, job: SlurmJob) -> RunStatus | None:
        """What its run says; None: it has none that can be read."""
        folder = self.folder(job)
        return None if folder is None else read_run_status(folder)

    def _likely(self, job: SlurmJob) -> Iterator[Path]:
        named = _COMMENT.search(job.comment)
        if named is not None:
            yield Path(job.folder, named[1])
        for place in (Path(job.folder, "headway"), *self._places):
            with contextlib.suppress(OSError):
                yield from sorted(place.iterdir())


def read_run_status(folder: Path) -> RunStatus | None:
    """What a run says of itself by now."""
    try:
        ledger = load(folder).ledger
    except (HeadwayError, OSError):
        return None
    if not ledger.attempts:
        return None
    price, last = cost.from_ledger(ledger), ledger.attempts[-1]
    taken = ledger.wall - round(price.unsaved * NS)
    heeds = any(one.level == "disk" for one in ledger.saved)  # a Checkpointer
    return RunStatus(
        unsaved=price.unsaved,
        saved_at=ledger.clock(taken, end=True) / NS if taken > last.start else None,
        save=price.save if heeds else None,
        recover=price.recover,
        preemptions=price.preemptions,
        outcome=last.outcome,
    )


def _belongs_to_job(folder: Path, number: int) -> bool:
    """Whether a launcher of this run was started by that job."""
    with contextlib.suppress(OSError):
        for path in folder.glob(LAUNCHER_JOURNALS):
            if _scheduler_job(path) == str(number):
                return True
    return False


def _scheduler_job(path: Path) -> str:
    if not path.is_file():  # opening a pipe would wait for its writer
        return ""
    with contextlib.suppress(OSError, ValueError, AttributeError), path.open("rb") as file:
        return str(json.loads(file.readline(1 << 16)).get("scheduler_job", ""))
    return ""
