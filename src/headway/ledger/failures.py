"""Why an attempt failed, by the exit codes, signals and exceptions in its journals.

The categories are those of the failure taxonomy. This module does not read log texts.
"""

from __future__ import annotations

import signal
from typing import Any, Final, NamedTuple

from headway.ledger.attempts import shares_pids
from headway.ledger.clocks import ClockAlignment
from headway.ledger.model import Failure, Ledger
from headway.ledger.record import AttemptRecord, RankRecord
from headway.taxonomy import OWNERS

RESTARTS: Final = 5  # at least; more if the run failed more often
RESTARTABLE: Final = ("yes", "bounded", "swap")  # values of `retry` that allow an immediate restart


# Categories of a verdict that take precedence when the launcher was stopped: the reason for the
# stop was not preemption.
EXTERNAL_CAUSES = frozenset({"time_limit", "user_cancel", "node_failure"})
_EXCEPTIONS = {
    "OutOfMemoryError": "gpu_oom",
    "MemoryError": "host_oom",
    "ModuleNotFoundError": "environment",
    "ImportError": "environment",
    "KeyboardInterrupt": "user_cancel",
    "DistBackendError": "network",
    "DistNetworkError": "network",
    "DistStoreError": "network",
    "ConnectionError": "network",
    "ConnectionResetError": "network",
}
# Errors of a rank whose peer died: never the first cause.
_PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "peer")
_STORAGE = ("Input/output error", "Stale file handle", "Read-only file system")
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class _Clue(NamedTuple):
    """One fact about a rank's end; the likeliest first cause sorts first."""

    symptom: bool
    at: int
    rank: int
    category: str
    evidence: str


def explain(
    attempt: AttemptRecord, index: int, alignment: ClockAlignment, hung_ranks: list[int]
) -> Failure:
    """Return the first cause of a failed or preempted attempt."""
    verdict = _launcher_event(attempt, "verdict")
    above = verdict is not None and str(verdict.get("category")) in EXTERNAL_CAUSES
    # A supervisor distinguishes a hang from a kill.
    watched = _launcher_event(attempt, "decision") is not None
    if verdict is not None and hung_ranks and verdict.get("category") != "hang" and not watched:
        verdict = None  # the rank hung, whatever killed it afterwards
    if verdict is not None and (attempt.outcome == "failed" or above):
        return _from_verdict(verdict, attempt, index)
    clue = _first_clue(attempt, alignment, hung_ranks)
    owner, retry = OWNERS[clue.category]
    return Failure(
        attempt=index,
        at=attempt.end,
        category=clue.category,
        owner=owner,
        retry=retry,
        root_rank=clue.rank if clue.rank >= 0 else None,
        evidence=clue.evidence,
        decision=_decision(attempt),
    )


def _launcher_event(attempt: AttemptRecord, event: str) -> dict[str, Any] | None:
    """Return a launcher's event on the end of its launch; it is the same on all nodes."""
    if not attempt.is_last_of_launch:
        return None
    events = [e for launcher in attempt.launch.journals for e in launcher.named(event)]
    return events[0] if events else None


def _from_verdict(verdict: dict[str, Any], attempt: AttemptRecord, index: int) -> Failure:
    category = str(verdict.get("category"))
    owner, retry = OWNERS.get(category, OWNERS["unknown"])
    return Failure(
        attempt=index,
        at=attempt.end,
        category=category if category in OWNERS else "unknown",
        owner=str(verdict.get("owner") or owner),
        retry=str(verdict.get("retry") or retry),
        root_rank=verdict.get("rank"),
        evidence=str(verdict.get("evidence") or ""),
        node=_text(verdict.get("node")),
        confidence=_text(verdict.get("confidence")),
        fingerprint=_text(verdict.get("fingerprint")),
        decision=_decision(attempt),
    )


def _decision(attempt: AttemptRecord) -> str | None:
    """Describe the supervisor's action."""
    decision = _launcher_event(attempt, "decision")
    return None if decision is None else f"{decision.get('action')}: {decision.get('why')}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _first_clue(attempt: AttemptRecord, alignment: ClockAlignment, hung_ranks: list[int]) -> _Clue:
    launch = attempt.launch
    if hung_ranks:  # whatever killed it afterwards
        text = f"rank {hung_ranks[0]} lived but made no step before it was ended"
        return _Clue(False, 0, hung_ranks[0], "hang", text)
    if attempt.outcome == "preempted" and launch.stop_signal is not None:
        name = _signal_name(launch.stop_signal)
        return _Clue(False, attempt.end, -1, "preemption", f"the launcher was sent {name}")
    if attempt.outcome == "preempted":
        return _Clue(False, attempt.end, -1, "preemption", "the ranks were told to stop")
    clues = [clue for rank in attempt.ranks for clue in _clues(rank, attempt, alignment)]
    clues = clues or _parents_clues(attempt, alignment)
    if clues:
        return min(clues)
    code = launch.exit_code if attempt.is_last_of_launch else None
    if code is not None and code != 0:
        return _Clue(True, attempt.end, -1, _of_code(code), f"the command ended with {_code(code)}")
    return _Clue(True, attempt.end, -1, "unknown", "it ended without leaving a reason")


def _parents_clues(attempt: AttemptRecord, alignment: ClockAlignment) -> list[_Clue]:
    """Return errors of processes that do not train, such as the parent of mp.spawn."""
    clues = []
    for journal in attempt.others:
        for error in journal.named("error"):
            kind, message = str(error.get("type", "")), str(error.get("message", ""))
            category = "unknown" if "ProcessExited" in kind else _of_exception(kind, message)
            text = f"process {journal.pid} raised {kind}: {_first_line(message)}"[:300]
            clues.append(
                _Clue(True, alignment.to_run_time(journal, error["t"]), -1, category, text)
            )
    return clues


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else ""


def _clues(rank: RankRecord, attempt: AttemptRecord, alignment: ClockAlignment) -> list[_Clue]:
    clues = []
    for error in rank.journal.named("error"):
        kind, message = str(error.get("type", "")), str(error.get("message", ""))
        category = _of_exception(kind, message)
        symptom = category == "network" or any(text in message for text in _PEER_LOST)
        text = f"rank {rank.rank} raised {kind}: {_first_line(message)}"[:300]
        clues.append(_Clue(symptom, error["t"] + rank.shift, rank.rank, category, text))
    deaths = [(agent, event) for agent in attempt.agents for event in agent.named("worker_failed")]
    deaths += [
        (launcher, event)
        for launcher in attempt.launch.journals
        for event in launcher.named("death")
    ]
    for witness, event in deaths:
        if event.get("pid") != rank.journal.pid or clues:
            continue
        if not shares_pids(witness, rank.journal):
            continue
        code = event.get("code")
        if not isinstance(code, int) or code in (0, -signal.SIGTERM):
            continue  # killed by its agent because another rank failed
        text = f"rank {rank.rank} ended with {_code(code)}"
        at = alignment.to_run_time(witness, event["t"])
        clues.append(_Clue(code > 0, at, rank.rank, _of_code(code), text))
    if (
        not clues
        and attempt.is_last_of_launch
        and len(attempt.ranks) == 1
        and attempt.launch.exit_code
    ):
        code = attempt.launch.exit_code
        text = f"rank {rank.rank} ended with {_code(code)}"
        clues.append(_Clue(code > 0, rank.last_sign, rank.rank, _of_code(code), text))
    return clues


def _of_exception(kind: str, message: str) -> str:
    name = kind.rpartition(".")[2]
    if name == "OSError" and "No space left" in message:
        return "disk_full"
    if name == "OSError" and any(text in message for text in _STORAGE):
        return "storage"
    if name == "RuntimeError" and ("Timed out" in message or "timed out" in message):
        return "comm_timeout"
    return _EXCEPTIONS.get(name, "user_code")


def _of_code(code: int) -> str:
    number = _signal_of(code)
    if number in _CRASHES:
        return "native_crash"
    if number == signal.SIGINT:
        return "user_cancel"
    return "unknown" if number is not None or code != 1 else "user_code"


def _signal_of(code: int) -> int | None:
    """Return the signal of an exit code, in both encodings: -9 of a parent, 137 of a shell."""
    if code < 0:
        return -code
    return code - 128 if 128 < code < 160 else None


def _code(code: int) -> str:
    number = _signal_of(code)
    if number is None:
        return f"exit code {code}"
    return f"{_signal_name(number)} (exit code {code})"


def _signal_name(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except (ValueError, TypeError):
        return f"signal {number}"


def is_restartable(failure: Failure) -> bool:
    """Whether an immediate restart in the same allocation is allowed."""
    return failure.owner != "scheduler" and failure.retry in RESTARTABLE


def restart_flags(ledger: Ledger) -> tuple[str, str]:
    """Return the flag that lets Headway restart the job, with a limit sufficient for this run."""
    return "--restarts", str(max(RESTARTS, len(ledger.failures)))
