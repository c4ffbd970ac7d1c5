from __future__ import annotations

from headway.ledger.build import build_ledger
from headway.ledger.notes import MAX_NOTES
from headway.testing import FakeRun


def test_notes_of_a_rank_name_it() -> None:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(0, rank=3, world=None)
    rank.event("note", 1, hook="device", text="switched off")
    rank.event("lost", 2, lines=7, why="No space left on device")
    nameless = job.process(0, rank=None, pid=55)
    nameless.event("note", 1, hook="data", code="hook-off", text="odd")
    first, lost, coded = job.ledger().notes
    assert first == "rank 3: device: switched off"  # of a version without codes
    assert lost.startswith("rank 3 ") and lost.endswith(
        " 7 line(s) of its journal: No space left on device [journal-lines-lost]"
    )
    assert coded == "process 55: data: odd [hook-off]"


def test_missing_ranks_are_named_as_far_as_that_helps() -> None:
    job = FakeRun()
    job.launcher(0)
    job.process(0, rank=1, world=64)
    (note,) = job.ledger().notes
    assert note.endswith(" (0, 2, 3, 4, 5, 6, 7, 8, ...) [ranks-missing]")
    assert " 63 of 64 ranks " in note


def test_there_are_never_too_many() -> None:
    job = FakeRun()
    job.launcher(0)
    rank = job.process(0)
    for number in range(100):
        rank.event("note", 1, hook="x", text=f"{number}" + "y" * 1000)
        rank.event("note", 1, hook="x", text="the same")
    notes = build_ledger([made.journal() for made in job.journals], problems=["first"]).notes
    assert len(notes) == MAX_NOTES + 1
    assert notes[0] == "first"
    assert notes[-1] == f"and {102 - MAX_NOTES} more notes"
    assert max(len(note) for note in notes) == 300
