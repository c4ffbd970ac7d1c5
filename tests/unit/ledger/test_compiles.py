from __future__ import annotations

from headway.ledger.model import Ledger, RecompileLimitHit
from headway.testing import FakeJournal, FakeRun
from headway.units import NS

PARTS = {
    "dynamo": 9_500_000,
    "aot_autograd": 9_000_000,
    "inductor": 6_000_000,
    "triton": 2_500_000,
    "autotune": 500_000,
}


def seconds(ledger: Ledger) -> dict[str, float]:
    parts: dict[str, float] = ledger.to_dict()["compile"]["parts"]
    return parts


def one_rank(rank: FakeJournal) -> None:
    rank.span("compile_import", 1, 3)
    rank.span("compile_cache", 3, 4)
    outer = rank.open("compile", 5, trigger="DYNAMO", compile_id="0/0")
    rank.span("compile_import", 6, 8)
    rank.close(outer, 15)
    rank.lines.append({"ev": "detail", "id": outer, "t": rank.at(15), "parts_us": PARTS})
    rank.train(1, 10, 16, 1)


def test_the_time_of_the_compiler_by_part() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    one_rank(job.process(0))
    launcher.exit(26, code=0)
    ledger = job.ledger()
    assert seconds(ledger) == {
        "import": 4.0,
        "cache_load": 1.0,
        "dynamo": 0.5,
        "aot_autograd": 1.0,  # the import that is nested in it is not its own
        "inductor": 3.0,
        "triton": 2.5,
        "autotune": 0.5,
        "other": 0.5,
    }
    assert sum(seconds(ledger).values()) == ledger.buckets["start.pt2_compile"] / NS == 13


def test_kernels_of_the_cpu_are_not_those_of_triton() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span(
        "compile", 1, 5, parts_us={"dynamo": 4_000_000, "inductor": 3_500_000, "cpp": 3_000_000}
    )
    rank.train(1, 5, 5, 1)
    launcher.exit(10, code=0)
    assert seconds(job.ledger()) == {"dynamo": 0.5, "inductor": 0.5, "cpp": 3.0}


def test_tuning_while_the_compiled_code_runs() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("compile", 1, 3)
    rank.span("compile_autotune", 4, 7)
    rank.train(1, 5, 7, 1)
    rank.span("compile_autotune", 9, 10)
    launcher.exit(12, code=0)
    ledger = job.ledger()
    assert seconds(ledger) == {"autotune": 3.0, "other": 2.0}
    assert ledger.buckets["waste.recompile"] == NS
    assert len(ledger.compiles) == 1


def test_what_a_cache_had_was_loaded() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    parts = {"dynamo": 3_000_000, "aot_autograd": 2_000_000}
    rank.span("compile", 1, 4, parts_us=parts, cache={"fx": [2, 0], "aot": [1, 0]}, cached=True)
    rank.train(1, 5, 4, 1)
    launcher.exit(9, code=0)
    ledger = job.ledger()
    assert seconds(ledger) == {"cache_load": 2.0, "dynamo": 1.0}
    told = ledger.to_dict()["compile"]
    assert (told["cold"], told["cached"]) == (0, 1)


def test_the_rank_that_is_done_last_counts() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number, (name, end) in enumerate((("compile", 5), ("compile_import", 8))):
        rank = job.process(0, rank=number, world=2)
        rank.span("data_wait", 0, 1)
        rank.span(name, 1, end, parts_us={"dynamo": 4_000_000})
        rank.train(1, 5, end, 1)
    launcher.exit(13, code=0)
    ledger = job.ledger()
    assert seconds(ledger) == {"import": 7.0}
    by_rank = ledger.to_dict()["compile"]["by_rank"]
    assert [one["parts"] for one in by_rank] == [{"dynamo": 4.0}, {"import": 7.0}]


def test_a_rank_that_lets_another_go_first_waits_for_that_ones_compile() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(0, rank=number, world=2)
        rank.span("data_wait", 0, 1)
        if number:
            rank.span("compile_turn", 1, 5)
        parts = {"dynamo": 1_000_000, "inductor": 0 if number else 3_000_000}
        rank.span("compile", 5 if number else 1, 6 if number else 5, parts_us=parts)
        rank.train(1, 5, 6, 1)
    launcher.exit(11, code=0)
    ledger = job.ledger()
    assert seconds(ledger) == {"dynamo": 1.0, "inductor": 3.0, "other": 1.0}
    assert sum(seconds(ledger).values()) == ledger.buckets["start.pt2_compile"] / NS


def test_hits_misses_and_reasons_by_rank() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    for number in range(2):
        rank = job.process(0, rank=number, world=2)
        counts = {"fx": [1, number], "aot": [0, 1]}
        rank.span("compile", 1, 2, cache=counts, bypassed=["has a torch function"] * number)
        rank.span("compile", 2, 3, cache=counts)
        rank.train(1, 5, 3, 1)
    launcher.exit(8, code=0)
    by_rank = job.ledger().to_dict()["compile"]["by_rank"]
    counts = ("fx_hits", "fx_misses", "aot_hits", "aot_misses", "bypassed")
    assert [[one[name] for name in counts] for one in by_rank] == [
        [2, 0, 0, 2, {}],
        [2, 2, 0, 2, {"has a torch function": 1}],
    ]


def test_a_backward_graph_is_no_compile_of_its_own() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("compile", 1, 3, trigger="DYNAMO", compile_id="0/0", where="a.py:1 f")
    rank.span("compile", 4, 5, trigger="LAZY_BACKWARD", compile_id="0/0")
    rank.train(1, 3, 5, 1)
    rank.span("compile", 8, 9, trigger="DYNAMO", compile_id="0/1", where="a.py:1 f", reason="size")
    rank.span("compile", 9, 11, trigger="LAZY_BACKWARD", compile_id="0/1")
    rank.span("compile", 11, 12, trigger="LAZY_BACKWARD", compile_id="7/7")
    rank.train(4, 3, 12, 1)
    launcher.exit(15, code=0)
    told = job.ledger().to_dict()["compile"]
    assert told["cold"] == 1
    assert [(one["where"], one["reason"], one["seconds"]) for one in told["recompiles"]] == [
        ("a.py:1 f", "size", 3.0),
        ("7/7", "compiled after the first step", 1.0),  # of a graph that nobody saw compiled
    ]


def test_where_torch_gave_up() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.train(1, 3, 1, 1)
    rank.event(
        "recompile_limit", 4, where="a.py:1 f", limit="recompile_limit", reason="0/7: n == 3"
    )
    rank.event("recompile_limit", 5)
    launcher.exit(6, code=0)
    ledger = job.ledger()
    assert ledger.recompile_limit_hits == (
        RecompileLimitHit(
            attempt=0, rank=0, at=4 * NS, where="a.py:1 f", limit="recompile_limit",
            reason="0/7: n == 3",
        ),
        RecompileLimitHit(
            attempt=0, rank=0, at=5 * NS, where="?", limit="recompile_limit", reason="",
        ),
    )  # fmt: skip
    assert ledger.to_dict()["compile"]["gave_up"][0]["at_s"] == 4.0


def test_parts_that_make_no_sense_are_cut_or_left_out() -> None:
    job = FakeRun()
    launcher = job.launcher(0)
    rank = job.process(0)
    rank.span("compile", 1, 2, parts_us={"dynamo": 90_000_000, "inductor": -1, "triton": "x"})
    rank.span("compile", 2, 3, parts_us=[1, 2], cache=7, bypassed={"a": 1})
    rank.span("compile", 3, 4, parts_us={"inductor": 1.5}, cache={"fx": ["a", None], "aot": [1]})
    rank.span("compile", 3.5, 3.75)  # of another thread, within the last one
    rank.open("compile", 4)
    rank.train(1, 3, 5, 1)
    launcher.exit(8, code=0)
    ledger = job.ledger()
    assert sum(seconds(ledger).values()) == ledger.buckets["start.pt2_compile"] / NS
    assert seconds(ledger)["dynamo"] == 1.0
