"""What the notice of a preemption has saved, in words."""

from __future__ import annotations

from headway.ledger.model import Ledger, Notice
from headway.report.words import count, duration


def of_attempt(ledger: Ledger, attempt: int) -> str:
    """Of the notice that ended an attempt; nothing where none did."""
    return next((said(one) for one in ledger.notices if one.attempt == attempt), "")


def said(notice: Notice) -> str:
    """What was made of it, and what was lost all the same."""
    return f"{_answer(notice)}; {_lost(notice)}"


def _answer(notice: Notice) -> str:
    of = "" if notice.step is None else f" of step {notice.step:,}"
    if notice.answer == "saved" and notice.saved_steps:
        return f"a last save{of} has kept {_time(notice, notice.saved_steps, notice.saved)}"
    if notice.answer == "saved":
        return f"a last save{of} has kept nothing"
    if notice.answer == "late":
        return f"a last save{of} was not done in time"
    if notice.answer == "skipped":
        return "there was no time for a last save"
    return "nobody saved at it"


def _lost(notice: Notice) -> str:
    if notice.lost is None or notice.lost_steps is None:
        return "what is lost will show when it trains again"
    if not notice.lost_steps:
        return "nothing was lost"
    return f"lost: {_time(notice, notice.lost_steps, notice.lost)}"


def _time(notice: Notice, steps: int, ns: int) -> str:
    held = f" x {notice.accelerators:,} accelerators" if notice.accelerators > 1 else ""
    return f"{count(steps, 'step')}, {duration(ns)}{held}"
