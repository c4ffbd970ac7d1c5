"""What the notice of a preemption has saved, in words."""

from __future__ import annotations

from headway.ledger.model import Ledger, PreemptionNotice
from headway.report.words import count, duration


def notice_of_attempt(ledger: Ledger, attempt: int) -> str:
    """Of the notice that ended an attempt; nothing where none did."""
    return next((describe_notice(one) for one in ledger.notices if one.attempt == attempt), "")


def describe_notice(notice: PreemptionNotice) -> str:
    """What was made of it, and what was lost all the same."""
    return f"{_describe_response(notice)}; {_describe_loss(notice)}"


def _describe_response(notice: PreemptionNotice) -> str:
    of = "" if notice.step is None else f" of step {notice.step:,}"
    if notice.answer == "saved" and notice.saved_steps:
        return f"a last save{of} has kept {_accelerator_time(notice, notice.saved_steps, notice.saved)}"
    if notice.answer == "saved":
        return f"a last save{of} has kept nothing"
    if notice.answer == "late":
        return f"a last save{of} was not done in time"
    if notice.answer == "skipped":
        return "there was no time for a last save"
    return "nobody saved at it"


def _describe_loss(notice: PreemptionNotice) -> str:
    if notice.lost is None or notice.lost_steps is None:
        return "what is lost will show when it trains again"
    if not notice.lost_steps:
        return "nothing was lost"
    return f"lost: {_accelerator_time(notice, notice.lost_steps, notice.lost)}"


def _accelerator_time(notice: PreemptionNotice, steps: int, ns: int) -> str:
    held = f" x {notice.accelerators:,} accelerators" if notice.accelerators > 1 else ""
    return f"{count(steps, 'step')}, {duration(ns)}{held}"
