"""Texts on failures: cause, last save, lost steps, next command; preemptions; injected faults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from headway.format import count, duration, one_line
from headway.ledger.boosters import active_boosters
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.failures import is_restartable, restart_flags
from headway.ledger.model import Attempt, Failure, Fault, Ledger, PreemptionNotice
from headway.ledger.resume import durable_saves


@dataclass(frozen=True, slots=True)
class UnsavedTraining:
    """Training that is not in a durable save; times in ns."""

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
    command: str  # to continue, after any fix
    needs_fix: bool  # another attempt fails too unless the cause is fixed

    @property
    def todo(self) -> str:
        """Label of the command."""
        if self.needs_fix:
            return "fix the cause, then"
        resumes = self.unsaved is not None and self.unsaved.saved is not None
        return "resume with" if resumes else "restart with"


def run_failure(ledger: Ledger) -> RunFailure | None:
    """Return the failure that ended the run; None if it is running or ended in another way."""
    if ledger.running or not ledger.attempts or ledger.attempts[-1].outcome != "failed":
        return None
    last = ledger.attempts[-1]
    of_last = [f for f in ledger.failures if f.attempt == last.index]
    failure = of_last[-1] if of_last else None
    mend = failure is not None and failure.retry == "no"
    return RunFailure(
        failure, last.last_step, unsaved_training(ledger), _next_command(ledger, failure), mend
    )


def unsaved_training(ledger: Ledger) -> UnsavedTraining | None:
    """Return the unsaved training of the last attempt that trained."""
    trained = [attempt for attempt in ledger.attempts if attempt.last_step is not None]
    if not trained:
        return None
    last = trained[-1]
    assert last.last_step is not None
    saves = [
        save
        for save in durable_saves(ledger.outcomes, ledger.checkpoints)
        if save.attempt == last.index and save.step <= last.last_step
    ]
    newest = max(saves, key=lambda save: save.step, default=None)
    step, since = (newest.step, newest.captured_at) if newest else (last.resumed_from, last.start)
    lost = sum(
        min(segment.end, last.end) - max(segment.start, since)
        for segment in ledger.segments
        if segment.bucket in (EFFECTIVE, LOST) and segment.end > since and segment.start < last.end
    )
    steps = max(last.last_step - (step or 0), 0)
    return UnsavedTraining(step, last.end - since if newest else 0, steps, lost if steps else 0)


def failure_facts(end: RunFailure) -> list[tuple[str, str]]:
    """Return label and value of each line on the failure."""
    facts = []
    if end.failure is not None:
        rank = "" if end.failure.root_rank is None else f", rank {end.failure.root_rank}"
        step = "before its first step"
        if end.last_step is not None:
            step = f"after step {end.last_step:,}"
        facts.append(("cause", f"{one_line(end.failure.category, 60)}{rank}, {step}"))
        if end.failure.evidence:
            facts.append(("evidence", one_line(end.failure.evidence, 300)))
    if end.unsaved is not None:
        facts.append(("saved", _describe_saved(end.unsaved)))
    return facts


def _describe_saved(unsaved: UnsavedTraining) -> str:
    saved = "nothing; another attempt starts at step 0"
    if unsaved.saved is not None:
        when = f", {duration(unsaved.before_end)} before the end" if unsaved.before_end else ""
        saved = f"step {unsaved.saved:,}{when}"
    if not unsaved.steps:
        return f"{saved}; no training lost"
    return f"{saved}; lost: {count(unsaved.steps, 'step')}, {duration(unsaved.time)} of training"


def _next_command(ledger: Ledger, failure: Failure | None) -> str:
    """Return the same command, with --restarts if a restart may help."""
    flags: tuple[str, ...] = ()
    if ledger.auto is not None:
        flags = ("--auto",)
    elif failure and _may_pass(ledger, failure) and "restarts" not in active_boosters(ledger):
        flags = restart_flags(ledger)
    return shlex.join(["headway", "run", *flags, "--", *(ledger.command or ("COMMAND",))])


def _may_pass(ledger: Ledger, failure: Failure) -> bool:
    """Whether a restart may help; unknown failures before the first step usually recur."""
    return is_restartable(failure) and (failure.category != "unknown" or ledger.steps > 0)


def notice_of_attempt(ledger: Ledger, attempt: int) -> str:
    """Describe the preemption notice that ended an attempt; empty if there was none."""
    return next(
        (describe_notice(notice) for notice in ledger.notices if notice.attempt == attempt), ""
    )


def describe_notice(notice: PreemptionNotice) -> str:
    """Describe the response to a preemption notice, and the loss."""
    return f"{_describe_response(notice)}; {_describe_loss(notice)}"


def _describe_response(notice: PreemptionNotice) -> str:
    of = "" if notice.step is None else f" of step {notice.step:,}"
    if notice.response == "saved" and notice.saved_steps:
        time = _accelerator_time(notice, notice.saved_steps, notice.saved)
        return f"a last save{of} kept {time}"
    if notice.response == "saved":
        return f"a last save{of} kept no training"
    if notice.response == "late":
        return f"a last save{of} was not done in time"
    if notice.response == "skipped":
        return "the time was too short for a last save"
    return "no save after the notice"


def _describe_loss(notice: PreemptionNotice) -> str:
    if notice.lost is None or notice.lost_steps is None:
        return "the loss is known once the run trains again"
    if not notice.lost_steps:
        return "no training lost"
    return f"lost: {_accelerator_time(notice, notice.lost_steps, notice.lost)}"


def _accelerator_time(notice: PreemptionNotice, steps: int, ns: int) -> str:
    held = f" x {notice.accelerators:,} accelerators" if notice.accelerators > 1 else ""
    return f"{count(steps, 'step')}, {duration(ns)}{held}"


def attempt_of(ledger: Ledger, index: int) -> Attempt | None:
    """Return the attempt with an index."""
    return next((a for a in ledger.attempts if a.index == index), None)


def last_step_before(ledger: Ledger, failure: Failure) -> int | None:
    """Return the last step of the attempt that a failure ended."""
    attempt = attempt_of(ledger, failure.attempt)
    return attempt.last_step if attempt else None


def rolled_back_steps(ledger: Ledger) -> list[tuple[int, int]]:
    """Return first and last step of each range that was trained and then rolled back."""
    if ledger.rolled_back is not None:
        return list(ledger.rolled_back)
    trained = [a for a in ledger.attempts if a.last_step is not None]
    ranges = []
    for before, after in pairwise(trained):
        resumed, last = after.resumed_from or 0, before.last_step
        if last is not None and last > resumed:
            ranges.append((resumed + 1, last))
    return ranges


def outcome_of(ledger: Ledger, fault: Fault) -> tuple[str, str]:
    """Return what was detected of a planned fault, and the decision on it."""
    if fault.missed is not None:
        return f"no effect: {fault.missed}", ""
    if fault.failure is None or fault.detected is None or fault.detected_after is None:
        return f"no failure: attempt {fault.attempt} continued", ""
    decision = ledger.failures[fault.failure].decision
    return f"{fault.detected} after {duration(fault.detected_after)}", decision or ""


def count_failures(by_owner: Mapping[str, int]) -> str:
    """Count failures by owner: `1 infra, 2 user failures`."""
    nonzero = {owner: number for owner, number in by_owner.items() if number}
    if not nonzero:
        return "no failure"
    parts = ", ".join(f"{number:,} {owner}" for owner, number in nonzero.items())
    return f"{parts} {'failure' if sum(nonzero.values()) == 1 else 'failures'}"
