"""Advice from journals: union of sources, ranks, old journals, and inconsistent journals."""

from __future__ import annotations

from typing import Any

import pytest

from headway.compile.recompiles.advice import Advice, advise
from headway.compile.recompiles.record import collect
from headway.compile.recompiles.sources import DYNAMIC, UNBACKED
from headway.testing import FakeJournal, FakeRun

WHERE = "/job/model.py:10 forward"


def size(name: str, dim: int, expected: int, actual: int) -> str:
    return (
        f"0/0: tensor '{name}' size mismatch at index {dim}. expected {expected}, actual {actual}"
    )


def again(rank: FakeJournal, at: float, *reasons: str, where: str = WHERE, **fields: Any) -> None:
    event = {"trigger": "DYNAMO", "compile_id": f"0/{rank.next_id}", "where": where, **fields}
    if reasons:
        event |= {"reason": reasons[0], "reasons": list(reasons)}
    rank.span("compile", at, at + 1, **event)


def advice_of(job: FakeRun) -> Advice:
    return advise(collect(writer.journal() for writer in job.journals))


@pytest.fixture
def job() -> FakeRun:
    return FakeRun()


@pytest.fixture
def rank(job: FakeRun) -> FakeJournal:
    return job.process(0, torch="2.13.0+cpu")


def test_guards_and_lattice_are_united(job: FakeRun, rank: FakeJournal) -> None:
    """Only a guard names x, only the lattice has y: they changed in the same call."""
    again(rank, 1, lattice=[["L['x']", [4]], ["L['y']", [4, 3]], ["L['n']", 2]])
    again(rank, 3, size("x", 0, 4, 5), lattice=[["L['y']", ["?", 3]], ["L['n']", "?"]])
    assert advice_of(job).env == {DYNAMIC: "L['x']:0,L['y']:0,L['n']"}


def test_the_guard_that_torch_gave_up_at_counts_too(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1)
    again(rank, 3, size("x", 0, 4, 5))
    reason = size("offs", 0, 3, 7)
    rank.event(
        "recompile_limit", 5, where=WHERE, limit="recompile_limit", reason=reason, step=7,
        reasons=[reason, size("x", 0, 4, 5)],
    )  # fmt: skip
    advice = advice_of(job)
    assert advice.recompiles == 1
    assert advice.env == {DYNAMIC: "L['x']:0,L['offs']:0"}
    (storm,) = advice.limit_hits
    assert (storm.where, storm.step, storm.ranks) == (WHERE, 7, (0,))
    assert advice.last_step == 7
    assert [(c.source, c.count) for c in advice.causes] == [("L['x']", 1), ("L['offs']", 0)]


def test_floats_and_what_the_code_pins_down_are_not_marked(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, lattice=[["L['lr']", 0.1], ["L['n']", 3], ["L['p']", 0.5], ["L['x']", [2]]])
    more = [["L['lr']", "?"], ["L['n']", "?"], ["L['p']", "?"], ["L['x']", "?"]]
    again(rank, 2, "0/0: lr == 0.1", lattice=more)
    again(rank, 4, "0/1: n == 4  # for _ in range(n):  # model.py:3 in forward")
    again(rank, 6, "0/1: tensor 'x' rank mismatch. expected 1, actual 2")
    advice = advice_of(job)
    assert advice.env == {} and not advice.has_new_settings
    assert {c.kind for c in advice.causes} == {"float", "pinned", "rank"}


def test_a_name_may_be_a_float_here_and_an_integer_there(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, "0/0: k == 0.5", where="a.py:1 f")
    again(rank, 3, "1/0: k == 3", where="a.py:9 g")
    assert advice_of(job).env == {DYNAMIC: "L['k']"}


def test_a_size_that_becomes_one_is_unbacked(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, size("x", 0, 4, 5))
    again(rank, 3, "0/1: 2 <= x.size()[0]  # y = x * 2", seen={"x": [1, 3]})
    advice = advice_of(job)
    assert advice.env == {UNBACKED: "L['x']:0"}
    (cause,) = advice.causes
    assert (cause.kind, cause.count, cause.values) == ("zero_one", 2, ("4", "5", "1"))


def test_a_size_that_the_code_asks_for_stays_dynamic(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, size("x", 0, 4, 1))
    again(rank, 3, "0/1: 2 <= x.size()[0] <= 8  # if x.shape[0] > 8", seen={"x": [12]})
    assert advice_of(job).env == {DYNAMIC: "L['x']:0"}


def test_ranks_compile_side_by_side(job: FakeRun) -> None:
    for number in range(3):
        rank = job.process(0, rank=number, world=3, torch="2.13.0")
        again(rank, 1)
        again(rank, 2, size("x", 0, 4, 5))
        if number == 1:
            again(rank, 4, "0/1: tensor 'y' dtype mismatch. expected Float, actual Half")
    advice = advice_of(job)
    assert (advice.recompiles, advice.ns) == (2, 2_000_000_000)  # on rank 1
    assert [(c.kind, c.count, c.ranks) for c in advice.causes] == [
        ("size", 1, (0, 1, 2)),
        ("dtype", 1, (1,)),
    ]


def test_what_was_set_already_stays_and_is_not_advised_again(
    job: FakeRun, rank: FakeJournal
) -> None:
    marked = {"dynamic_sources": "L['x'],L['z']:1", "dynamic_values": "1111"}
    again(rank, 1, marked=marked)
    again(rank, 3, size("x", 0, 4, 5))  # marked or not, its code pins it down
    advice = advice_of(job)
    assert advice.env[DYNAMIC] == "L['x'],L['z']:1" and not advice.has_new_settings
    again(rank, 5, size("y", 2, 4, 5))
    advice = advice_of(job)
    assert advice.env == {
        DYNAMIC: "L['x'],L['z']:1,L['y']:2",
        "TORCH_COMPILE_DYNAMIC_VALUES": "1111",
    }
    assert advice.has_new_settings


def test_strings_are_made_for_the_torch_of_the_run(job: FakeRun) -> None:
    rank = job.process(0, torch=None)
    again(rank, 1, torch="2.11.0+cu130", lattice=[["L['x']", [4, 3]]])
    again(rank, 3, size("x", 0, 4, 5))
    assert advice_of(job).env == {DYNAMIC: "L['x']"}


def test_an_old_journal_has_a_reason_and_no_more(job: FakeRun) -> None:
    rank = job.process(0)
    rank.span("compile", 1, 2, trigger="DYNAMO", compile_id="0/0", where=WHERE)
    rank.train(1, 3, 2, 1)
    rank.span(
        "compile", 6, 7, trigger="DYNAMO", compile_id="0/1", where=WHERE,
        reason=size("feats['a']", 0, 4, 5),
    )  # fmt: skip
    advice = advice_of(job)
    assert advice.torch is None
    assert advice.env == {DYNAMIC: "L['feats']['a']"}
    (cause,) = advice.causes
    assert (cause.values, cause.caller, cause.steps) == (("4", "5"), "", (3,))


def test_first_compiles_after_the_start(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, where="a.py:1 train")
    rank.train(1, 3, 2, 1)
    again(rank, 6, where="a.py:9 evaluate", step=3)
    again(rank, 8, where="a.py:1 train", step=3)  # from the start again
    assert [(c.kind, c.where) for c in advice_of(job).causes] == [
        ("rebuilt", "a.py:1 train"),
        ("late", "a.py:9 evaluate"),
    ]


def test_a_backward_graph_costs_its_recompile(job: FakeRun, rank: FakeJournal) -> None:
    again(rank, 1, size("x", 0, 4, 5), compile_id="0/1")
    rank.span("compile", 3, 6, trigger="LAZY_BACKWARD", compile_id="0/1")
    advice = advice_of(job)
    assert (advice.recompiles, advice.ns, advice.graphs) == (1, 4_000_000_000, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasons": "text", "seen": [1], "lattice": {"a": 1}, "marked": 3, "caller": 7, "torch": 2},
        {"reasons": [None, 7], "seen": {"x": {"y": 1}}, "lattice": [["a"], ["b", 1, 2], 3, []]},
        {"lattice": [["L['x']", {"size": 3}], ["L['y']", [None, {}]], ["L['z']", "??"]]},
        {"marked": {"dynamic_sources": ["L['x']"], "unbacked_sources": "*bad("}},
        {"where": 12, "reason": ["a"], "trigger": None},
        {"reason": "0/0: tensor 'x' size mismatch at index 99999999999. expected s0, actual 5"},
        {"reason": "0/0: " + "(" * 900, "reasons": ["\x00", "]]]'"]},
        {"parts_us": "x", "cache": [], "bypassed": 1, "failed": 3},
    ],
)
def test_a_journal_that_makes_no_sense_is_no_fault(
    job: FakeRun, rank: FakeJournal, fields: dict[str, Any]
) -> None:
    again(rank, 1, size("x", 0, 4, 5))
    rank.span("compile", 3, 4, **{"trigger": "DYNAMO", "where": WHERE, **fields})
    rank.event("recompile_limit", 5, **fields)
    advice = advice_of(job)
    assert advice.recompiles >= 1
    assert "L['x']" in "".join(advice.env.values())
    advice.to_dict()
    job.ledger().to_dict()
