"""Planned faults beside the failures they led to."""

from __future__ import annotations

from typing import Any

from headway.ledger.model import Fault
from headway.testing import FakeJournal, FakeRun
from headway.units import NS


def planned(journal: FakeJournal, t: float, number: int, kind: str, **more: Any) -> None:
    fields = {"fault": number, "key": "k0", "kind": kind, "who": "rank 0", "planned": f"{kind} it"}
    journal.event("fault", t, **{**fields, **more})


def run_of(*codes: int) -> tuple[FakeRun, list[FakeJournal], list[FakeJournal]]:
    """One attempt of ten seconds for each code, with a launch of its own."""
    job = FakeRun()
    launchers, ranks = [], []
    for index, code in enumerate(codes):
        begin = 10 * index
        launcher = job.launcher(begin, launch=f"L{index}", index=index)
        rank = job.process(begin, launch=f"L{index}")
        rank.train(1, 3, begin + 1, 1)
        if code == 0:
            rank.exit(begin + 9)
        launcher.exit(begin + 9, code=code)
        launchers.append(launcher)
        ranks.append(rank)
    return job, launchers, ranks


def brief(faults: tuple[Fault, ...]) -> list[tuple[int, float, str, int | None]]:
    return [(f.attempt, f.at / NS, f.kind, f.failure) for f in faults]


def test_a_run_without_faults_says_nothing_of_them() -> None:
    job, _, _ = run_of(1, 0)
    ledger = job.ledger()
    assert ledger.faults == ()
    assert "faults" not in ledger.to_dict()


def test_a_fault_is_matched_with_the_failure_of_its_attempt() -> None:
    job, _, ranks = run_of(1, 1, 0)
    planned(ranks[0], 4, 1, "kill", step=3)
    planned(ranks[1], 15, 2, "raise")
    planned(ranks[2], 24, 3, "data")
    ledger = job.ledger()
    assert brief(ledger.faults) == [
        (0, 4.0, "kill", 0),
        (1, 15.0, "raise", 1),
        (2, 24.0, "data", None),
    ]
    first = ledger.faults[0]
    assert first.detected == ledger.failures[0].category
    assert first.detected_after == ledger.failures[0].at - first.at
    assert ledger.to_dict()["faults"][0] == {
        "attempt": 0,
        "at_s": 4.0,
        "kind": "kill",
        "who": "rank 0",
        "step": 3,
        "planned": "kill it",
        "missed": None,
        "failure": 0,
        "detected": first.detected,
        "detected_after_s": (ledger.failures[0].at - first.at) / NS,
    }
    assert ledger.to_dict()["faults"][2]["detected"] is None


def test_of_several_faults_the_last_hard_one_is_the_cause() -> None:
    job, launchers, ranks = run_of(1)
    planned(ranks[0], 2, 1, "stop")
    planned(launchers[0], 3, 2, "kill", who="all")
    planned(ranks[0], 4, 3, "data")
    planned(ranks[0], 4.5, 4, "disk", mode="slow")
    planned(launchers[0], 5, 5, "corrupt", missed="there is none")
    faults = job.ledger().faults
    assert [f.failure for f in faults] == [None, 0, None, None, None]
    assert faults[4].missed == "there is none"


def test_a_soft_one_is_the_cause_where_there_is_no_other() -> None:
    job, _, ranks = run_of(1)
    planned(ranks[0], 4, 1, "corrupt")
    assert [f.failure for f in job.ledger().faults] == [0]


def test_what_comes_after_the_failure_did_not_cause_it() -> None:
    job, launchers, _ = run_of(1, 0)
    planned(launchers[1], 10, 1, "corrupt", who="/checkpoints/a.pt")
    faults = job.ledger().faults
    assert brief(faults) == [(1, 10.0, "corrupt", None)]
    assert faults[0].who == "/checkpoints/a.pt"


def test_what_several_ranks_do_by_one_line_is_one_fault() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in (10, 2, 0):
        rank = job.process(0, rank=number, world=11)
        rank.train(1, 3, 1, 1)
        planned(rank, 4 + number / 100, 1, "disk", who=f"rank {number}")
        planned(rank, 6, 1, "disk", who=f"rank {number}", key="k1")
    launcher.exit(9, code=1)
    faults = job.ledger().faults
    assert [(f.who, f.at / NS, f.failure) for f in faults] == [
        ("rank 0, 2, 10", 4.0, 0),
        ("rank 0, 2, 10", 6.0, 0),
    ]


def test_lines_of_the_plan_whose_moment_never_came() -> None:
    job, launchers, ranks = run_of(1, 0)
    lines = [{"kind": "kill", "planned": "kill it"}, {"kind": "stop", "planned": "stop it"}]
    for index, launcher in enumerate(launchers):
        launcher.event("plan", 10 * index, seed=7, faults=lines)
    planned(ranks[0], 4, 1, "kill")
    came, left = job.ledger().faults
    assert (came.kind, came.failure, came.missed) == ("kill", 0, None)
    assert (left.kind, left.planned, left.failure) == ("stop", "stop it", None)
    assert left.missed == "its trigger was never reached"


def test_while_a_run_goes_on_its_moment_may_still_come() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    job.process(0).train(1, 3, 1, 1)
    launcher.event("plan", 0, seed=7, faults=[{"kind": "kill", "planned": "kill it"}])
    assert job.ledger().faults == ()


def test_damaged_events_break_nothing() -> None:
    job, launchers, ranks = run_of(1)
    launchers[0].event("plan", 0, faults="none")
    launchers[0].event("plan", 0, faults=[3])
    ranks[0].event("fault", 4)
    (fault,) = job.ledger().faults
    assert (fault.kind, fault.planned) == ("None", "")
