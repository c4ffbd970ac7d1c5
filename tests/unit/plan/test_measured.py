from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headway.advise.model import Evidence
from headway.advise.rules import checkpoint
from headway.errors import UsageError
from headway.fleet.queries.dimensions import Filter
from headway.fleet.queries.planning import measured_in_store
from headway.ledger.checkpoints import recommended_interval
from headway.ledger.model import Checkpoint, CheckpointOutcome, Failure
from headway.plan.job import JobSpec
from headway.plan.measured import measured_by_run
from headway.units import NS
from tests.support import has_code
from tests.unit.report.ledgers import Line, killed, ledger_of
from tests.unit.serve.fleet import RUNS

if TYPE_CHECKING:
    from headway.fleet.store.reader import QueryFn
    from headway.serve.sources import Source


def test_the_values_of_a_run() -> None:
    ledger = killed()
    measured = measured_by_run(ledger, "night")
    assert (measured.runs, measured.nodes, measured.failures) == (1, 2, 1)
    assert measured.node_hours == pytest.approx(2 * ledger.wall / NS / 3600)
    assert measured.block_s == pytest.approx(5.7)
    assert measured.start_s is not None and ledger.time_to_start is not None
    assert measured.compile_s == 167
    assert measured.start_s + measured.compile_s == pytest.approx(ledger.time_to_start / NS)
    whole = ledger.time_to_recover[0] / NS
    assert (measured.requeue_s, measured.compile_again_s) == (20, 166)
    assert measured.recover_s == pytest.approx(whole - 186)
    # Jeffreys' prior has half a failure, and the interval is around the mean.
    assert measured.failures_a_day == pytest.approx(1.5 / measured.node_hours * 24)
    assert measured.failures_low is not None and measured.failures_high is not None
    assert measured.failures_low < measured.failures_a_day < measured.failures_high
    assert measured.values["mtbf"] == pytest.approx(86400 / measured.failures_a_day)


def test_a_replaced_node_is_counted_once() -> None:
    ledger = killed()
    ranks = tuple(
        replace(rank, hosts=("a", "b", "c"), host_of={0: "a", 1: "bc"[place]})
        for place, rank in enumerate(ledger.ranks[:2])
    )
    assert measured_by_run(replace(ledger, ranks=ranks), "night").nodes == 2
    assert measured_by_run(replace(ledger, ranks=ranks[:1]), "night").nodes == 1


def test_failures_without_a_restart_do_not_count() -> None:
    line = Line().add("start.pt2_compile", 10).add("train.effective", 90)
    failure = Failure(
        attempt=0, at=1, category="user_code", owner="user", retry="no", root_rank=0, evidence=""
    )
    measured = measured_by_run(ledger_of(line, failures=(failure,), time_to_start=10 * NS), "bug")
    assert measured.failures == 0
    assert measured.block_s is None and "block" not in measured.values
    # Never interrupted: a recovery is taken to be as long as the start.
    assert measured.recover_s is None
    assert (measured.values["recover"], measured.values["compile_again"]) == (0, 10)


def test_values_of_a_checkpointer_take_precedence() -> None:
    saved = CheckpointOutcome(
        attempt=0,
        step=1,
        at=5 * NS,
        level="disk",
        blocked=NS,
        step_slowdown=2 * NS,
        durable=4 * NS,
        size=1,
    )
    line = Line().add("train.effective", 100)
    measured = measured_by_run(ledger_of(line, outcomes=(saved,)), "saver")
    assert (measured.block_s, measured.durable_s) == (3, 3)


@pytest.mark.xdist_group("pages")
def test_the_values_of_a_store(source: Source) -> None:
    def first_row(question: QueryFn) -> dict[str, object]:
        return source.query(question)[0]

    measured = measured_in_store(first_row, Filter(), "store")
    assert (measured.runs, measured.nodes, measured.failures) == (RUNS, None, 4)
    assert (measured.recover_s, measured.requeue_s, measured.compile_again_s) == (90, 0, 0)
    assert (measured.start_s, measured.compile_s) == (0, 360)  # no more than the Time to Start
    assert measured.block_s is not None and measured.node_hours > 0
    with pytest.raises(UsageError, check=has_code("no-runs-match")):
        measured_in_store(first_row, Filter(where=(("team", "nobody"),)), "store")


def test_one_recommended_interval() -> None:
    """Report, advice and plan of a run recommend the same interval."""
    line = Line().add("train.effective", 9000).add("waste.checkpoint_block", 12)
    line.add("failure.lost_training", 2000)
    save = Checkpoint(
        attempt=0, rank=0, start=9000 * NS, end=9012 * NS, step=9, path="a", durable=9040 * NS
    )
    failure = Failure(
        attempt=0, at=1, category="network", owner="infra", retry="yes", root_rank=0, evidence=""
    )
    shown = recommended_interval((), (save,), (failure,), line.now)
    assert shown is not None
    ledger = ledger_of(
        line, steps=9000, failures=(failure,), checkpoints=(save,), saves=1,
        recommended_interval=shown,
    )  # fmt: skip
    (advised,) = checkpoint.propose_interval(Evidence(ledger=ledger))
    planned = JobSpec(nodes=1, length=86400.0, **measured_by_run(ledger, "x").values).best()
    assert f"interval={shown / NS:.3g})" in advised.code[0]
    assert planned.interval == pytest.approx(shown / NS)


def test_without_a_failure_the_rate_is_a_bound() -> None:
    ledger = replace(killed(), failures=(), time_to_recover=())
    measured = measured_by_run(ledger, "calm")
    assert measured.is_bound and measured.failures_a_day is None and measured.failures_low == 0.0
    assert measured.failures_high == pytest.approx(3 / measured.node_hours * 24)
    assert measured.values["mtbf"] == pytest.approx(86400 / measured.failures_high)
    assert not measured_by_run(killed(), "night").is_bound
