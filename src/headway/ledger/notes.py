"""What a reader of the ledger should know about the record behind it."""

from __future__ import annotations

from collections.abc import Sequence

from headway.journal.reader import Journal
from headway.ledger.attempts import Draft, Launch
from headway.ledger.clocks import Axis

LIMIT = 40


def collect(
    problems: Sequence[str],
    axis: Axis,
    launches: Sequence[Launch],
    drafts: Sequence[Draft],
    journals: Sequence[Journal],
) -> tuple[str, ...]:
    """One sentence each, without repeats, at most `LIMIT`."""
    notes = [*problems, *axis.notes]
    if not any(launch.journals for launch in launches) and launches:
        notes.append("no launcher's journal was found: starts and ends are the processes' own")
    for index, draft in enumerate(drafts):
        notes += _missing_ranks(index, draft)
    for journal in journals:
        who = f"rank {journal.rank}" if journal.rank is not None else f"process {journal.pid}"
        for event in journal.named("note"):
            notes.append(f"{who}: {event.get('hook', '')}: {event.get('text', '')}")
        for event in journal.named("lost"):
            notes.append(
                f"{who} could not write {event.get('lines')} line(s) of its journal: "
                f"{event.get('why')}"
            )
    unique = list(dict.fromkeys(str(note)[:300] for note in notes))
    if len(unique) > LIMIT:
        unique[LIMIT:] = [f"and {len(unique) - LIMIT} more notes"]
    return tuple(unique)


def _missing_ranks(index: int, draft: Draft) -> list[str]:
    worlds = [life.journal.world for life in draft.lives if life.journal.world]
    if not worlds or not draft.lives:
        return []
    have = {life.rank for life in draft.lives}
    missing = max(worlds) - len(have)
    if missing <= 0:
        return []
    some = [r for r in range(min(max(worlds), len(have) + 8)) if r not in have][:8]
    named = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
    return [f"attempt {index}: {missing} of {max(worlds)} ranks left no journal ({named})"]
