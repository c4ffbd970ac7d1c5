"""Each rule on a run that needs it, with exact gains, and on one that does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from headway.advise import rules
from headway.advise.model import AdviceReport, Evidence, OtherRun, Proposal, Tuning
from headway.advise.resolve import resolve
from headway.ledger.buckets import EFFECTIVE, LOST
from headway.ledger.model import (
    AsyncSave,
    Attempt,
    Checkpoint,
    Compile,
    CompileCacheLoad,
    Failure,
    Ledger,
    PreStepCollectives,
    ProcessGroups,
    Publish,
    StageGraph,
    StageRow,
)
from headway.report import communication
from headway.units import NS
from tests.support import Golden
from tests.unit.advise.random_ledgers import REASON
from tests.unit.report.ledgers import Line, killed, ledger_of, no_steps, rank_of


def ask(rule: str, ledger: Ledger, *others: Ledger, **known: Any) -> list[Proposal]:
    other_runs = tuple(
        OtherRun(ledger=other, warm=known.get("warm_others", False)) for other in others
    )
    known.pop("warm_others", None)
    return list(rules.rule(rule).proposals(Evidence(ledger=ledger, others=other_runs, **known)))


def worth(rule: str, ledger: Ledger, *others: Ledger, **known: Any) -> tuple[float, str]:
    """Seconds and confidence of the single proposal of a rule."""
    (proposal,) = ask(rule, ledger, *others, **known)
    report: AdviceReport = resolve(ledger, [(rule, proposal)])
    return report.gain / NS, proposal.confidence


def ledger_with(line: Line, **others: Any) -> Ledger:
    return ledger_of(line.add(EFFECTIVE, 100), steps=100, **others)


def lives(*lines: Line) -> tuple[Line, tuple[Attempt, ...]]:
    """Consecutive attempts; all but the last have failed."""
    whole, attempts = Line(), []
    for index, line in enumerate(lines):
        start = whole.now
        for part in line.segments:
            whole.add(part.bucket, (part.end - part.start) / NS)
        last = index == len(lines) - 1
        outcome: Any = "completed" if last else "failed"
        attempts.append(
            Attempt(index=index, start=start, end=whole.now, outcome=outcome, ranks=(0, 1))
        )
    return whole, tuple(attempts)


def failed(attempt: int = 0, **others: Any) -> Failure:
    fields: dict[str, Any] = {
        "attempt": attempt, "at": 0, "category": "network", "owner": "infra", "retry": "yes",
        "root_rank": 0, "evidence": "",
    }  # fmt: skip
    return Failure(**{**fields, **others})


def compiled(attempt: int = 0, **others: Any) -> Compile:
    fields: dict[str, Any] = {
        "attempt": attempt, "rank": 0, "start": 0, "end": 10 * NS, "location": "train.py:7 forward",
        "reason": "", "recompile": False, "cached": False,
    }  # fmt: skip
    return Compile(**{**fields, **others})


@pytest.mark.parametrize("rule", rules.OWN)
def test_a_run_that_only_trains_needs_nothing(rule: str) -> None:
    assert not ask(rule, ledger_with(Line()))
    assert not [p for p in ask(rule, no_steps()) if p.confidence == "high"]


def test_data_and_model_prepared_sequentially() -> None:
    line = Line().start("start", train_module_creation=8, get_first_batch_data=3)
    assert worth("stage_overlap", ledger_with(line)) == (3.0, "medium")


def test_declared_stages_shrink_to_the_critical_path() -> None:
    line = Line().start("start", preproc_creation=5, train_module_creation=6)
    rows = [("preproc_creation", 0, 5), ("train_module_creation", 5, 11)]
    graph = StageGraph(
        attempt=0, rank=0, critical=("train_module_creation",), bound=6 * NS,
        rows=tuple(
            StageRow(name=name, where="thread", needs=(), start=start * NS, end=end * NS)
            for name, start, end in rows
        ),
    )  # fmt: skip
    assert worth("stage_overlap", ledger_with(line, stages=(graph,))) == (5.0, "medium")


def test_the_compiler_waits_for_the_batch() -> None:
    line = Line().start("start", get_first_batch_data=6, pt2_compile=10)
    assert worth("fast_batch", ledger_with(line, compiles=(compiled(),))) == (6.0, "medium")
    assert not ask("fast_batch", ledger_with(line))  # an import of the compiler is no compile


def test_a_missed_precompile() -> None:
    line = Line().start("start", pt2_compile=10)
    again = compiled(recompile=True, missed_precompile=True, reason=REASON, end=4 * NS)
    assert worth("fast_batch", ledger_with(line, compiles=(again,))) == (4.0, "high")


def test_avoidable_process_groups() -> None:
    groups = ProcessGroups(
        where="train.py:6", what="new_group", desc="", backend="nccl", size=2, ranks=4, calls=8,
        made=2, used=1, unused=1, duplicate=0, ns=5 * NS, avoidable=3 * NS, complete=True,
    )  # fmt: skip
    line = Line().start("start", process_group_init=9)
    assert worth("process_groups", ledger_with(line, process_groups=(groups,))) == (3.0, "medium")
    going = replace(groups, complete=False)
    assert worth("process_groups", ledger_with(line, process_groups=(going,)))[1] == "low"
    others = replace(groups, where="/venv/lib/python3.11/site-packages/lightning/a.py:6 setup")
    assert not ask("process_groups", ledger_with(line, process_groups=(others,)))
    assert [
        finding.advice
        for finding in communication.process_group_findings(
            ledger_with(line, process_groups=(others,))
        )
    ] == [""]


def test_metadata_sent_table_by_table() -> None:
    calls = PreStepCollectives(
        where="a.py:9",
        what="all_gather_object",
        ranks=2,
        times=10,
        ns=9 * NS,
        min_time=5 * NS,
        bytes=1,
    )
    line = Line().start("start", train_module_creation=9)
    assert worth("shard_metadata", ledger_with(line, pre_step_collectives=(calls,))) == (
        4.5,
        "medium",
    )
    assert not ask(
        "shard_metadata", ledger_with(line, pre_step_collectives=(replace(calls, times=1),))
    )
    others = replace(calls, where="/usr/lib/python3/dist-packages/accelerate/state.py:4 wait")
    assert not ask("shard_metadata", ledger_with(line, pre_step_collectives=(others,)))
    assert [
        finding.advice
        for finding in communication.collective_findings(
            ledger_with(line, pre_step_collectives=(others,))
        )
    ] == [""]


def test_a_cold_compile_estimated_from_its_phases() -> None:
    line = Line().start("start", pt2_compile=10)
    parts = {"import": 1 * NS, "dynamo": 2 * NS, "inductor": 7 * NS}
    ledger = ledger_with(line, compiles=(compiled(),), compile_parts=parts)
    assert worth("compile_cache", ledger) == (7.0, "medium")


def test_a_cold_compile_estimated_from_a_warm_start() -> None:
    line, attempts = lives(
        Line().start("start", pt2_compile=10).add(EFFECTIVE, 5),
        Line().start("recover", pt2_compile=2).add(EFFECTIVE, 5),
    )
    both = (compiled(), compiled(1, cached=True))
    ledger = ledger_of(line, steps=9, attempts=attempts, compiles=both)
    assert worth("compile_cache", ledger) == (8.0, "medium")
    hit = CompileCacheLoad(
        attempt=0, level="exact", why="", files=1, bytes=1, load=0, compile_cold=0, compile=0
    )
    warm = ledger_with(
        Line().start("start", pt2_compile=1), compiles=(compiled(cached=True),), archives=(hit,)
    )
    assert worth("compile_cache", ledger, warm) == (9.0, "high")
    assert not ask("compile_cache", warm)


def test_autotuning_without_remaining_configs() -> None:
    line = Line().start("start", pt2_compile=10)
    tuning = Tuning(kernels=3, time_s=6.0, remaining_s=1.5)
    assert worth("autotune_pruning", ledger_with(line), tuning=tuning) == (4.5, "medium")
    assert not ask("autotune_pruning", ledger_with(line), tuning=replace(tuning, remaining_s=6.0))


def test_a_changing_size() -> None:
    line = Line().start("start", pt2_compile=10).add(EFFECTIVE, 5).add("waste.recompile", 8)
    again = compiled(recompile=True, reason=REASON, end=6 * NS)
    ledger = ledger_with(line, compiles=(compiled(), again))
    assert worth("dynamic_sources", ledger) == (6.0, "medium")
    assert worth("dynamic_sources", ledger, ledger_with(Line()))[1] == "high"
    other = replace(again, reason="a guard that nobody knows")
    assert not ask("dynamic_sources", ledger_with(line, compiles=(compiled(), other)))


def test_waiting_for_data() -> None:
    ledger = ledger_with(Line().add("waste.data_stall", 250))
    assert worth("data_workers", ledger) == (250.0, "low")
    (found,) = ask("data_workers", ledger)
    assert "num_workers=now + 3" in found.code[0]
    better = ledger_with(Line().add("waste.data_stall", 10))
    assert worth("data_workers", ledger, better) == (240.0, "medium")


def test_saves_that_block() -> None:
    line = Line()
    for _ in range(3):
        line.add(EFFECTIVE, 50).add("waste.checkpoint_block", 4)
    ledger = ledger_with(line, saves=3)
    assert worth("async_checkpoint", ledger) == (12.0, "low")
    behind = AsyncSave(saves=2, blocked=NS, write=9, wait=0, failed=0, sync_fallbacks={})
    other = ledger_with(Line().add("waste.checkpoint_block", 2), saves=2, async_save=behind)
    assert worth("async_checkpoint", ledger, other) == (9.0, "high")
    assert not ask("async_checkpoint", other)
    waiting = replace(other, async_save=replace(behind, wait=2 * NS))
    assert worth("async_checkpoint", ledger, waiting) == (6.0, "high")


def saved(step: int, blocked: float) -> Checkpoint:
    return Checkpoint(
        attempt=0, rank=0, start=0, end=round(blocked * NS), step=step, path=f"ckpt/{step}"
    )


def test_how_often_to_save(golden: Golden) -> None:
    line, attempts = lives(
        Line().add(EFFECTIVE, 1000).add("waste.checkpoint_block", 1).add(LOST, 900),
        Line().start("recover", launcher_init=30).add(EFFECTIVE, 1999),
    )
    ledger = ledger_of(
        line, steps=3000, attempts=attempts, saves=2, save_interval=1000 * NS,
        checkpoints=tuple(saved(step, 0.5) for step in (500, 1000)),
        failures=(failed(),), time_to_recover=(30 * NS,),
    )  # fmt: skip
    (found,) = ask("interval", ledger)
    # Young: half a second for a save, 3930 s with 1.5 failures in them.
    golden("interval-shorter.txt", f"{found.title}\n{found.why}\n")
    best = math.sqrt(2 * 0.5 * 3930 / 1.5)
    assert found.code == (f"Checkpointer(store, state, interval={best:.3g})  # or a Tuner",)
    expected = 3900 * (best / 2 * 1.5 / 3930 + 0.5 / best)
    assert worth("interval", ledger)[0] == pytest.approx(901 - expected, abs=0.1)
    shown = replace(ledger, recommended_interval=300 * NS)
    (same,) = ask("interval", shown)
    assert "interval=300)" in same.code[0]  # what the report shows is what is advised


def test_saves_without_failures_are_too_many(golden: Golden) -> None:
    line = Line()
    for _ in range(10):
        line.add(EFFECTIVE, 10).add("waste.checkpoint_block", 10)
    saves = tuple(saved(step, 10) for step in range(10))
    ledger = ledger_with(line, saves=10, save_interval=10 * NS, checkpoints=saves)
    (found,) = ask("interval", ledger)
    # Below 3 failures in its time, so that the best interval is longer than Young's for those.
    assert f"interval={math.sqrt(2 * 10 * ledger.wall / NS / 3):.3g})" in found.code[0]
    assert not ask("interval", replace(ledger, save_interval=90 * NS))
    golden("interval-longer.txt", f"{found.title}\n{found.why}\n")
    assert found.confidence == "low"


def test_no_save_at_all() -> None:
    line, attempts = lives(Line().add(LOST, 50), Line().add(EFFECTIVE, 100))
    ledger = ledger_of(line, steps=9, attempts=attempts, failures=(failed(),))
    assert worth("interval", ledger) == (50.0, "low")


def test_a_shorter_hang_limit() -> None:
    line = Line().add(EFFECTIVE, 50).add("waste.evaluation", 20).add(EFFECTIVE, 50)
    ledger = ledger_of(line.add("failure.hang", 600), steps=100)
    (found,) = ask("hang_limits", ledger)
    assert found.flags == ("--restarts", "5", "--hang-after", "40")  # twice the longest pause
    assert worth("hang_limits", ledger) == (600.0 - 42.0, "medium")
    assert not ask("hang_limits", ledger_of(Line().add("failure.hang", 11), steps=1))


def restarted(decision: str | None, downtime: float = 60) -> Ledger:
    line, attempts = lives(
        Line().add(EFFECTIVE, 50).add("recover.detection", 5),
        Line()
        .add("recover.downtime", downtime)
        .start("recover", launcher_init=20)
        .add(EFFECTIVE, 9),
    )
    return ledger_of(line, steps=9, attempts=attempts, failures=(failed(decision=decision),))


def test_the_gap_between_two_attempts() -> None:
    slow = restarted(None)
    assert worth("requeue_delay", slow) == (65.0, "low")
    quick = restarted("restart: a network failed", downtime=1)
    assert worth("requeue_delay", slow, quick) == (59.0, "high")
    assert not ask("requeue_delay", quick)
    evicted = replace(slow, failures=(failed(owner="scheduler", retry="yes"),))
    assert not ask("requeue_delay", evicted)


def test_restarts_that_import_again() -> None:
    ledger = restarted(None)
    assert worth("restart_warmth", ledger) == (20.0, "low")
    assert worth("restart_warmth", ledger, restarted(None), warm_others=True)[1:] == ("high",)
    assert not ask("restart_warmth", ledger, warm=True)


def test_a_node_that_fails_again() -> None:
    line, attempts = lives(
        Line().add(EFFECTIVE, 10).add(LOST, 30),
        Line().add("recover.downtime", 10).add(EFFECTIVE, 10).add(LOST, 30),
        Line().add("recover.downtime", 10).add(EFFECTIVE, 10),
    )
    ranks = tuple(rank_of(rank, line, 9, host=f"node-{rank}") for rank in range(2))
    failures = (failed(0, node="node-1"), failed(1, node="node-1"))
    ledger = ledger_of(line, steps=9, attempts=attempts, ranks=ranks, failures=failures)
    assert worth("lemon_nodes", ledger) == (40.0, "low")  # one of the two would be chance
    assert worth("lemon_nodes", ledger, lemons={"node-1": 0.9}) == (72.0, "high")
    assert not ask("lemon_nodes", replace(ledger, failures=failures[:1]))


def test_an_eviction_with_notice() -> None:
    line, attempts = lives(Line().add(EFFECTIVE, 9).add(LOST, 100), Line().add(EFFECTIVE, 100))
    evicted = failed(category="preemption", owner="scheduler")
    ledger = ledger_of(line, steps=9, attempts=attempts, failures=(evicted,))
    assert worth("preemption_price", ledger) == (100.0, "low")
    assert not ask("preemption_price", replace(ledger, failures=(failed(),)))


def test_publishing_on_the_trainer() -> None:
    line = Line().add("stop.publish", 40)
    assert worth("publish_off", ledger_with(line)) == (40.0, "medium")
    handed = Publish(run="p", folder="", anchor="", store="")
    assert worth("publish_off", ledger_with(line), ledger_with(Line(), published_by=handed)) == (
        40.0,
        "high",
    )


def test_several_rules_advise_a_run() -> None:
    ledger = killed()
    proposals, notes = rules.ask(Evidence(ledger=ledger))
    assert not notes
    report = resolve(ledger, proposals)
    named = {advice.rule for advice in report.advice}
    assert {"fast_batch", "async_checkpoint", "publish_off", "restart_warmth"} <= named
    assert 0 < report.gain <= report.lost


def test_a_custom_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def __init__(self, name: str, found: object) -> None:
            self.name, self.found = name, found

        def load(self) -> object:
            return self.found

    class Good:
        def proposals(self, evidence: Evidence) -> list[Proposal]:
            return [Proposal(title="mine", savings=(), confidence="low", why="")]

    class Bad:
        def proposals(self, evidence: Evidence) -> list[Proposal]:
            raise KeyError("no such leaf")

    points = [Point("mine", Good()), Point("wrong", Bad())]

    def entry_points(group: str, name: str | None = None) -> list[Point]:
        assert group == "headway.rules"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(rules, "entry_points", entry_points)
    found, notes = rules.ask(Evidence(ledger=ledger_with(Line())))
    assert [(name, proposal.title) for name, proposal in found] == [("mine", "mine")]
    assert notes == ["rule wrong failed: KeyError: 'no such leaf'"]


def test_a_failure_before_a_warm_process_is_ready() -> None:
    line, attempts = lives(
        Line().start("start", launcher_init=20).add(EFFECTIVE, 9),
        Line().start("recover", launcher_init=20).add(EFFECTIVE, 20),
        Line().start("recover", launcher_init=20).add(EFFECTIVE, 9),
    )
    ledger = ledger_of(line, steps=9, attempts=attempts, failures=(failed(), failed(1)))
    assert worth("restart_warmth", ledger) == (20.0, "low")
