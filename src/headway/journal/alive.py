"""Whether the process that wrote a journal without an end can still be alive."""

from __future__ import annotations

from headway.journal.reader import Journal
from headway.journal.writer import boot_id, pid_space, started_at

TICK_NS = 20_000_000  # the kernel tells starts in ticks, rounded up here
SILENT_NS = 600_000_000_000  # a process of another host beats its pulse; file systems delay it


def has_ended(journal: Journal, wall: int) -> bool:
    """Whether it has ended, as far as can be told here; `wall`: now by the wall clock, in ns.

    A process of this boot is looked up by its number, any other one is judged by its last sign of
    life. Writers that name no space of their numbers are others than ours: nothing is known of how
    often they give a sign.
    """
    pids = journal.facts.get("pids")
    if pids is None:
        return False
    if journal.boot == boot_id() and pids == pid_space():
        began = started_at(journal.pid)
        return began is None or began > journal.opened + TICK_NS
    return wall - (journal.wall + journal.last_sign() - journal.opened) > SILENT_NS
