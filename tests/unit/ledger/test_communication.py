"""Process groups and early collectives, over ranks and attempts."""

from __future__ import annotations

from typing import Any

import pytest

from headway.ledger.model import Ledger, PreStepCollectives, ProcessGroups
from headway.report import html
from headway.testing import FakeRun
from tests.support import Golden
from tests.unit.report.rendering import text_of, words_of

MS = 1_000_000
EVIL = "<script>alert(1)</script>"


def mesh(**more: Any) -> dict[str, Any]:
    """What a rank tells of a mesh's dimension: 4 calls for its one group."""
    row = {"where": "/job/train.py:12 setup", "what": "new_group", "desc": "mesh_tp"}
    counts = {"size": 2, "calls": 4, "ns": 20 * MS, "made": 1, "used": 1, "unused": 0, "again": 0}
    return {**row, "backend": "nccl", **counts, "other_ns": 6 * MS, **more}


def gather(**more: Any) -> dict[str, Any]:
    row = {"where": "/job/tables.py:40 share", "what": "all_gather_object"}
    return {**row, "times": 200, "ns": 1800 * MS, "bytes": 9000, **more}


def told(*ranks: dict[str, Any], attempts: int = 1) -> Ledger:
    """A run whose ranks tell this in each attempt; `at` is the end of the rank if not given."""
    job = FakeRun()
    launcher = job.launcher(0)
    for attempt in range(attempts):
        start = 30 * attempt
        for number, event in enumerate(ranks):
            rank = job.process(start + 1, rank=number, world=len(ranks), restart=attempt)
            rank.train(1, 3, start + 10, 1)
            rank.event("communication", start + 20, **{"at": "exit", **event})
            rank.exit(start + 25)
    launcher.exit(30 * attempts, code=0)
    return job.ledger()


def one_group(ledger: Ledger) -> ProcessGroups:
    (one,) = ledger.process_groups
    return one


def one_call(ledger: Ledger) -> PreStepCollectives:
    (one,) = ledger.pre_step_collectives
    return one


def test_the_rank_that_lost_least_says_what_was_needless() -> None:
    """The others may only have waited for that one."""
    slow = mesh(ns=90 * MS, other_ns=70 * MS)
    one = one_group(told({"groups": [mesh()]}, {"groups": [slow]}))
    assert (one.ranks, one.calls, one.made, one.used) == (2, 4, 1, 1)
    assert (one.ns, one.avoidable) == (90 * MS, 6 * MS)


def test_unused_on_one_rank_is_not_unused() -> None:
    unused = mesh(used=0, unused=1, unused_ns=14 * MS)
    assert one_group(told({"groups": [unused]}, {"groups": [mesh()]})).unused == 0
    both = one_group(told({"groups": [unused]}, {"groups": [unused]}))
    assert (both.used, both.unused, both.avoidable) == (0, 1, 20 * MS)


def test_a_rank_without_a_group_there_has_no_say_in_its_use() -> None:
    outside = mesh(made=0, used=0, ns=6 * MS, other_ns=6 * MS)
    unused = mesh(used=0, unused=1, unused_ns=14 * MS)
    one = one_group(told({"groups": [outside]}, {"groups": [unused]}))
    assert (one.unused, one.avoidable) == (1, 20 * MS)


def test_a_rank_that_lives_may_still_use_it() -> None:
    unused = mesh(used=0, unused=1, unused_ns=14 * MS)
    one = one_group(told({"at": "first_step", "groups": [unused]}))
    assert (one.unused, one.complete, one.avoidable) == (1, False, 6 * MS)


def test_the_last_word_of_a_rank_counts() -> None:
    job = FakeRun()
    launcher, rank = job.launcher(0), job.process(0)
    rank.train(1, 3, 10, 1)
    rank.event("communication", 12, at="first_step", groups=[mesh(used=0, unused=1)])
    rank.event("communication", 14, at="exit", groups=[mesh()])
    launcher.exit(20, code=0)
    assert one_group(job.ledger()).used == 1


def test_calls_by_place() -> None:
    early = {"calls": [gather(), gather(what="barrier", times=1, ns=5 * MS, bytes=0)]}
    late = {"calls": [gather(ns=300 * MS)]}
    ledger = told(early, late)
    objects, barrier = ledger.pre_step_collectives
    assert (objects.ranks, objects.times, objects.bytes) == (2, 200, 9000)
    assert (objects.ns, objects.min_time) == (1800 * MS, 300 * MS)
    assert (barrier.what, barrier.ranks, barrier.ns) == ("barrier", 1, 5 * MS)


def test_every_attempt_pays_again() -> None:
    ledger = told({"groups": [mesh()], "calls": [gather()]}, attempts=2)
    assert len(ledger.attempts) == 2
    group, call = one_group(ledger), one_call(ledger)
    assert (group.calls, group.ns, group.avoidable) == (4, 40 * MS, 12 * MS)
    assert (call.times, call.ns, call.min_time) == (200, 3600 * MS, 3600 * MS)


def test_the_json_contract() -> None:
    found = told({"groups": [mesh()], "calls": [gather()]}).to_dict()["communication"]
    assert found == {
        "groups": [
            {
                "where": "/job/train.py:12 setup",
                "what": "new_group",
                "desc": "mesh_tp",
                "backend": "nccl",
                "size": 2,
                "ranks": 1,
                "calls": 4,
                "made": 1,
                "used": 1,
                "unused": 0,
                "again": 0,
                "seconds": 0.02,
                "needless_s": 0.006,
                "settled": True,
            }
        ],
        "calls": [
            {
                "where": "/job/tables.py:40 share",
                "what": "all_gather_object",
                "ranks": 1,
                "times": 200,
                "seconds": 1.8,
                "least_s": 1.8,
                "bytes": 9000,
            }
        ],
    }
    assert told({}).to_dict()["communication"] == {"groups": [], "calls": []}


@pytest.mark.parametrize(
    "event",
    [
        {"groups": 3, "calls": None},
        {"groups": [1, None, {}, {"where": 5}], "calls": ["x"]},
        {"groups": [{"where": "a", "calls": -1, "ns": "x", "size": []}]},
        {"calls": [{"where": "a", "times": 1 << 80, "what": None}]},
    ],
)
def test_odd_events_break_nothing(event: dict[str, Any]) -> None:
    ledger = told(event)
    assert sum(one.ns for one in (*ledger.process_groups, *ledger.pre_step_collectives)) == 0
    html.page(ledger)


def test_the_terminal_names_cost_place_and_cure(golden: Golden) -> None:
    unused = mesh(desc="mesh_dp", used=0, unused=1, unused_ns=14 * MS)
    again = mesh(desc="", calls=1, other_ns=0, again=1, again_ns=20 * MS)
    barrier = gather(what="barrier", times=1, ns=5 * MS, bytes=0)
    ledger = told({"groups": [mesh(), unused, again], "calls": [gather(), barrier]})
    golden("communication.txt", text_of(ledger, width=160))
    golden("communication-none.txt", text_of(told({}), width=160))


def test_the_page_says_the_same_and_trusts_nothing(golden: Golden) -> None:
    unused = mesh(where=EVIL, desc=EVIL, used=0, unused=1)
    page = html.page(told({"at": "first_step", "groups": [unused], "calls": [gather()]}))
    assert EVIL not in page
    golden("communication-html.txt", words_of(page))
