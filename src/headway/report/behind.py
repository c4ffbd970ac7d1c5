"""Saves written behind the training, in words."""

from __future__ import annotations

from headway.ledger.model import Ledger
from headway.report.words import count, duration, one_line

SHOWN_REASONS = 3  # reasons


def async_save_facts(ledger: Ledger) -> list[tuple[str, str]]:
    """Name and value of each fact."""
    told = ledger.behind
    if told is None:
        return []
    text = f"{count(told.saves, 'save')}, {duration(told.blocked)} blocked, "
    text += f"{duration(told.written)} written behind"
    text += f", {duration(told.waited)} waited for" if told.waited else ""
    text += f", {told.failed} failed" if told.failed else ""
    found = [("asynchronous", text)]
    if told.plain:
        most = sorted(told.plain.items(), key=lambda item: -item[1])
        whys = "; ".join(f"{number} x {one_line(why, 100)}" for why, number in most[:SHOWN_REASONS])
        more = len(most) - SHOWN_REASONS
        whys += f"; and {count(more, 'more reason')}" if more > 0 else ""
        found.append(("plain all the same", f"{count(sum(told.plain.values()), 'save')}: {whys}"))
    return found
