"""What a Checkpointer tells the journal, where there is one."""

from __future__ import annotations

from typing import Any

from headway import sdk


def note_save(**told: Any) -> None:
    """What became of a save, what it cost, and how often to save."""
    _emit("checkpoint", told)


def note_restore(**told: Any) -> None:
    """Where the state came from."""
    _emit("restored", told)


def note_preemption(**told: Any) -> None:
    """All ranks leave the loop, as they were told to."""
    _emit("preempted", told)


def note(text: str, *, code: str) -> None:
    """Something that a reader of the ledger should know."""
    _emit("note", {"hook": "checkpoint", "code": code, "text": text})


def _emit(event: str, told: dict[str, Any]) -> None:
    recorder = sdk.active_recorder()
    if recorder is not None:
        from headway.probe.recorder import guard

        recorder.start()
        guard("checkpoint", lambda: recorder.emit(event, **told))
