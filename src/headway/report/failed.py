"""How a run came to a bad end: the cause, what is saved, what is lost, and what to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from headway.ledger.boosters import active_boosters
from headway.ledger.durable import durable_saves
from headway.ledger.leaves import EFFECTIVE, LOST
from headway.ledger.model import Failure, Ledger
from headway.report.hints import is_restartable, restart_flags
from headway.report.words import count, duration, one_line


@dataclass(frozen=True, slots=True)
class UnsavedTraining:
    """Training that no durable save holds; times in ns."""

    saved: int | None  # the step of the last save that an attempt could resume from
    before_end: int  # how long before the end it was taken
    steps: int
    time: int


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The end of a run whose last attempt failed."""

    failure: Failure | None
    last_step: int | None  # of the last attempt
    unsaved: UnsavedTraining | None  # None: it never trained
    command: str  # to go on with, once what is to be mended is mended
    mend: bool  # another attempt fails as well unless something is changed

    @property
    def todo(self) -> str:
        """What stands before the command."""
        if self.mend:
            return "mend it, then"
        resumes = self.unsaved is not None and self.unsaved.saved is not None
        return "go on with" if resumes else "start again with"


def run_failure(ledger: Ledger) -> RunFailure | None:
    """None of a run that goes on, or that ended in another way."""
    if ledger.running or not ledger.attempts or ledger.attempts[-1].outcome != "failed":
        return None
    last = ledger.attempts[-1]
    of_last = [one for one in ledger.failures if one.attempt == last.index]
    failure = of_last[-1] if of_last else None
    mend = failure is not None and failure.retry == "no"
    return RunFailure(
        failure, last.last_step, unsaved_training(ledger), _next_command(ledger, failure), mend
    )


def unsaved_training(ledger: Ledger) -> UnsavedTraining | None:
    """Of the last attempt that trained: those after it have added nothing."""
    trained = [one for one in ledger.attempts if one.last_step is not None]
    if not trained:
        return None
    last = trained[-1]
    assert last.last_step is not None
    saves = [
        one
        for one in durable_saves(ledger.saved, ledger.checkpoints)
        if one.attempt == last.index and one.step <= last.last_step
    ]
    newest = max(saves, key=lambda one: one.step, default=None)
    step, since = (newest.step, newest.taken) if newest else (last.resumed_from, last.start)
    lost = sum(
        min(segment.end, last.end) - max(segment.start, since)
        for segment in ledger.segments
        if segment.leaf in (EFFECTIVE, LOST) and segment.end > since and segment.start < last.end
    )
    steps = max(last.last_step - (step or 0), 0)
    return UnsavedTraining(step, last.end - since if newest else 0, steps, lost if steps else 0)


def failure_facts(end: RunFailure) -> list[tuple[str, str]]:
    """Name and value of each line."""
    found = []
    if end.failure is not None:
        rank = "" if end.failure.root_rank is None else f", rank {end.failure.root_rank}"
        step = "before its first step"
        if end.last_step is not None:
            step = f"after step {end.last_step:,}"
        found.append(("cause", f"{one_line(end.failure.category, 60)}{rank}, {step}"))
        if end.failure.evidence:
            found.append(("evidence", one_line(end.failure.evidence, 300)))
    if end.unsaved is not None:
        found.append(("saved", _describe_saved(end.unsaved)))
    return found


def _describe_saved(left: UnsavedTraining) -> str:
    saved = "nothing, so that another attempt begins at step 0"
    if left.saved is not None:
        when = f", {duration(left.before_end)} before the end" if left.before_end else ""
        saved = f"step {left.saved:,}{when}"
    if not left.steps:
        return f"{saved}; nothing is lost"
    return f"{saved}; lost: {count(left.steps, 'step')}, {duration(left.time)} of training"


def _next_command(ledger: Ledger, failure: Failure | None) -> str:
    """The same command; with restarts where they would have helped."""
    flags: tuple[str, ...] = ()
    if ledger.auto is not None:
        flags = ("--auto",)
    elif failure and _may_pass(ledger, failure) and "restarts" not in active_boosters(ledger):
        flags = restart_flags(ledger)
    return shlex.join(["headway", "run", *flags, "--", *(ledger.command or ("COMMAND",))])


def _may_pass(ledger: Ledger, failure: Failure) -> bool:
    """What failed for an unknown reason before its first step most likely does so again."""
    return is_restartable(failure) and (failure.category != "unknown" or ledger.steps > 0)
