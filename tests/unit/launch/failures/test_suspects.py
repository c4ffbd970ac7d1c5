"""The rank that the others wait for."""

from __future__ import annotations

from headway.launch.failures import Fact, classify

TIMED_OUT = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51) timed out"


def test_the_one_that_says_nothing() -> None:
    facts = [
        Fact(source="log", text=TIMED_OUT.format(rank), rank=rank, level="error")
        for rank in (0, 1, 2, 4)
    ]
    assert classify(facts).rank == 3


def test_the_one_that_stayed_behind() -> None:
    facts = [
        Fact(
            source="log",
            text=f"{TIMED_OUT.format(rank)} last enqueued NCCL work: {40 if rank == 2 else 53}",
            rank=rank,
        )
        for rank in range(5)
    ]
    assert classify(facts).rank == 2


def test_the_one_that_is_named() -> None:
    text = (
        "Received a dump signal due to a collective timeout from rank 18 and we will try our best"
    )
    facts = [
        Fact(source="log", text=TIMED_OUT.format(1), rank=1),
        Fact(source="log", text=text, rank=3),
    ]
    assert classify(facts).rank == 18
