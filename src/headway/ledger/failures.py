"""Why an attempt failed, from what its journals say: exit codes, signals and exceptions.

The categories are those of the failure taxonomy; texts of logs are not read here.
"""

from __future__ import annotations

import signal
from typing import Any, Final, NamedTuple

from headway.ledger.attempts import shares_pids
from headway.ledger.clocks import ClockAlignment
from headway.ledger.model import Failure, Ledger
from headway.ledger.record import AttemptRecord, RankRecord
from headway.taxonomy import OWNERS

RESTARTS: Final = 5  # unless the run has failed more often
RESTARTABLE: Final = ("yes", "bounded", "swap")  # what asks for another attempt at once


# Who told the launcher to stop may have had another reason than to take its place away.
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
# What a rank says when another one has died: never the first cause.
_PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "peer")
_STORAGE = ("Input/output error", "Stale file handle", "Read-only file system")
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class _Clue(NamedTuple):
    """One fact about a rank's end; sorts with the likeliest first cause in front."""

    symptom: bool
    at: int
    rank: int
    category: str
    evidence: str


def explain(
    draft: AttemptRecord, index: int, axis: ClockAlignment, hung_ranks: list[int]
) -> Failure:
    """The first cause of a failed attempt."""
    told = _launcher_event(draft, "verdict")
    above = told is not None and str(told.get("category")) in EXTERNAL_CAUSES
    watched = (
        _launcher_event(draft, "decision") is not None
    )  # by a supervisor, who knows a hang from a kill
    if told is not None and hung_ranks and told.get("category") != "hang" and not watched:
        told = None  # it was found hanging, by whoever ended it then
    if told is not None and (draft.outcome == "failed" or above):
        return _from_verdict(told, draft, index)
    clue = _first_clue(draft, axis, hung_ranks)
    owner, retry = OWNERS[clue.category]
    return Failure(
        attempt=index,
        at=draft.end,
        category=clue.category,
        owner=owner,
        retry=retry,
        root_rank=clue.rank if clue.rank >= 0 else None,
        evidence=clue.evidence,
        decision=_decision(draft),
    )


def _launcher_event(draft: AttemptRecord, event: str) -> dict[str, Any] | None:
    """What the launcher says of the end of its launch; all nodes say the same."""
    if not draft.last:
        return None
    found = [e for launcher in draft.launch.journals for e in launcher.named(event)]
    return found[0] if found else None


def _from_verdict(told: dict[str, Any], draft: AttemptRecord, index: int) -> Failure:
    category = str(told.get("category"))
    owner, retry = OWNERS.get(category, OWNERS["unknown"])
    return Failure(
        attempt=index,
        at=draft.end,
        category=category if category in OWNERS else "unknown",
        owner=str(told.get("owner") or owner),
        retry=str(told.get("retry") or retry),
        root_rank=told.get("rank"),
        evidence=str(told.get("evidence") or ""),
        node=_text(told.get("node")),
        confidence=_text(told.get("confidence")),
        fingerprint=_text(told.get("fingerprint")),
        decision=_decision(draft),
    )


def _decision(draft: AttemptRecord) -> str | None:
    """What the supervisor did, in words."""
    told = _launcher_event(draft, "decision")
    return None if told is None else f"{told.get('action')}: {told.get('why')}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _first_clue(draft: AttemptRecord, axis: ClockAlignment, hung_ranks: list[int]) -> _Clue:
    launch = draft.launch
    if hung_ranks:  # whoever ended it then, and how
        text = f"rank {hung_ranks[0]} lived but made no step before it was ended"
        return _Clue(False, 0, hung_ranks[0], "hang", text)
    if draft.outcome == "preempted" and launch.stop_signal is not None:
        name = _signal_name(launch.stop_signal)
        return _Clue(False, draft.end, -1, "preemption", f"the launcher was sent {name}")
    if draft.outcome == "preempted":
        return _Clue(False, draft.end, -1, "preemption", "the ranks were told to stop")
    clues = [clue for life in draft.lives for clue in _clues(life, draft, axis)]
    clues = clues or _parents_clues(draft, axis)
    if clues:
        return min(clues)
    code = launch.exit_code if draft.last else None
    if code is not None and code != 0:
        return _Clue(True, draft.end, -1, _of_code(code), f"the command ended with {_code(code)}")
    return _Clue(True, draft.end, -1, "unknown", "it ended without leaving a reason")


def _parents_clues(draft: AttemptRecord, axis: ClockAlignment) -> list[_Clue]:
    """What a process that trains nothing, such as the parent of mp.spawn, died of."""
    found = []
    for journal in draft.others:
        for error in journal.named("error"):
            kind, message = str(error.get("type", "")), str(error.get("message", ""))
            category = "unknown" if "ProcessExited" in kind else _of_exception(kind, message)
            text = f"process {journal.pid} raised {kind}: {_first_line(message)}"[:300]
            found.append(_Clue(True, axis.at(journal, error["t"]), -1, category, text))
    return found


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else ""


def _clues(life: RankRecord, draft: AttemptRecord, axis: ClockAlignment) -> list[_Clue]:
    found = []
    for error in life.journal.named("error"):
        kind, message = str(error.get("type", "")), str(error.get("message", ""))
        category = _of_exception(kind, message)
        symptom = category == "network" or any(text in message for text in _PEER_LOST)
        text = f"rank {life.rank} raised {kind}: {_first_line(message)}"[:300]
        found.append(_Clue(symptom, error["t"] + life.shift, life.rank, category, text))
    told = [(agent, event) for agent in draft.agents for event in agent.named("worker_failed")]
    told += [(one, event) for one in draft.launch.journals for event in one.named("death")]
    for witness, event in told:
        if event.get("pid") != life.journal.pid or found:
            continue
        if not shares_pids(witness, life.journal):
            continue
        code = event.get("code")
        if not isinstance(code, int) or code in (0, -signal.SIGTERM):
            continue  # ended by its agent because another rank failed
        text = f"rank {life.rank} ended with {_code(code)}"
        at = axis.at(witness, event["t"])
        found.append(_Clue(code > 0, at, life.rank, _of_code(code), text))
    if not found and draft.last and len(draft.lives) == 1 and draft.launch.exit_code:
        code = draft.launch.exit_code
        text = f"rank {life.rank} ended with {_code(code)}"
        found.append(_Clue(code > 0, life.last_sign, life.rank, _of_code(code), text))
    return found


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
    """Both spellings of a death by signal: -9 from a parent, 137 from a shell."""
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
    """Whether another attempt may be made at once, where the job is."""
    return failure.owner != "scheduler" and failure.retry in RESTARTABLE


def restart_flags(ledger: Ledger) -> tuple[str, str]:
    """The flag that lets Headway start the job again, often enough for this run."""
    return "--restarts", str(max(RESTARTS, len(ledger.failures)))
