"""Notes on the completeness of the journals, and the longest gaps of unknown time."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import with_code
from headway.journal.reader import Journal
from headway.ledger.clocks import ClockAlignment
from headway.ledger.merge import AttemptTimeline
from headway.ledger.model import Gap
from headway.ledger.record import AttemptRecord, Launch

MAX_NOTES = 40
MAX_NOTE_LENGTH = 300  # characters, without the code


def collect_notes(
    problems: Sequence[str],
    alignment: ClockAlignment,
    launches: Sequence[Launch],
    attempts: Sequence[AttemptRecord],
    journals: Sequence[Journal],
) -> tuple[str, ...]:
    """Return the notes without duplicates, at most `MAX_NOTES`."""
    notes = [*problems, *alignment.notes]
    if not any(launch.journals for launch in launches) and launches:
        notes.append(
            with_code(
                "no launcher's journal was found: starts and ends are the processes' own",
                code="launcher-journal-missing",
            )
        )
    zero = min((launch.begin for launch in launches), default=0)
    for launch in launches:
        notes += _silent_launchers(launch, alignment, zero)
    for index, attempt in enumerate(attempts):
        notes += _missing_ranks(index, attempt)
    for journal in journals:
        process = f"rank {journal.rank}" if journal.rank is not None else f"process {journal.pid}"
        for event in journal.named("note"):
            text = f"{process}: {event.get('hook', '')}: {event.get('text', '')}"[:MAX_NOTE_LENGTH]
            notes.append(with_code(text, code=str(event.get("code", ""))))
        for event in journal.named("lost"):
            notes.append(
                with_code(
                    f"{process} could not write {event.get('lines')} line(s) of its journal: "
                    f"{event.get('why')}",
                    code="journal-lines-lost",
                )
            )
    unique = list(dict.fromkeys(str(note)[: MAX_NOTE_LENGTH + 60] for note in notes))
    if len(unique) > MAX_NOTES:
        unique[MAX_NOTES:] = [f"and {len(unique) - MAX_NOTES} more notes"]
    return tuple(unique)


def _silent_launchers(launch: Launch, alignment: ClockAlignment, zero: int) -> list[str]:
    """Note launchers that ended without an exit event: killed, or their machine failed."""
    notes = []
    for journal in launch.journals:
        if journal.ended and not any(True for _ in journal.named("exit", "decision")):
            seconds = (alignment.to_run_time(journal, journal.last_sign()) - zero) / 1e9
            notes.append(
                with_code(
                    f"the launcher on {journal.host} died {seconds:.1f} s after the start of the "
                    "run: what became of the job is not recorded",
                    code="launcher-died",
                )
            )
    return notes


def _missing_ranks(index: int, attempt: AttemptRecord) -> list[str]:
    worlds = [rank.journal.world for rank in attempt.ranks if rank.journal.world]
    if not worlds or not attempt.ranks:
        return []
    have = {rank.rank for rank in attempt.ranks}
    missing = max(worlds) - len(have)
    if missing <= 0:
        return []
    some = [r for r in range(min(max(worlds), len(have) + 8)) if r not in have][:8]
    named = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
    return [
        with_code(
            f"attempt {index}: {missing} of {max(worlds)} ranks left no journal ({named})",
            code="ranks-missing",
        )
    ]


def longest_gaps(timelines: Sequence[AttemptTimeline], zero: int) -> tuple[Gap, ...]:
    """Return the 20 longest stretches that no span covers."""
    gaps = [gap for timeline in timelines for account in timeline.trainers for gap in account.gaps]
    gaps.sort(key=lambda g: (g.start - g.end, g.attempt, g.rank))
    return tuple(
        Gap(g.attempt, g.rank, g.start - zero, g.end - zero, g.after, g.before) for g in gaps[:20]
    )
